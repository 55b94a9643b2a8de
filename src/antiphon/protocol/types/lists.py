"""Lists, a page at a time; `last_id` of one page is `after` of the next. A page may have less than was asked for."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct, field

from antiphon.protocol.types.conversation import Conversation
from antiphon.protocol.types.items import InputItem
from antiphon.protocol.types.request import Includable
from antiphon.protocol.types.response import Response

Order = Literal["asc", "desc"]
Limit = Annotated[int, Meta(ge=1, le=100)]

_encode = msgspec.json.Encoder().encode


class IncludeQuery(Struct, frozen=True, kw_only=True):
    """Sealed reasoning is shown on request; all else that is kept is shown anyway."""

    include: list[Includable] = field(default_factory=list)


class ListQuery(Struct, frozen=True, kw_only=True):
    """What a client may ask of a list."""

    limit: Limit = 20
    order: Order = "desc"
    after: str | None = None


class ItemsQuery(ListQuery, frozen=True, kw_only=True):
    """What a client may ask of a list of items."""

    include: list[Includable] = field(default_factory=list)


class _Page(Struct, kw_only=True):
    """An empty one has empty ids: OpenAI's types know no null there."""

    object: Literal["list"] = "list"
    data: list[Any]
    first_id: str
    last_id: str
    has_more: bool


class ItemList(_Page, kw_only=True):
    data: list[InputItem]


class ResponseList(_Page, kw_only=True):
    """An extension: OpenAI has no such list."""

    data: list[Response]


class ConversationList(_Page, kw_only=True):
    """An extension likewise."""

    data: list[Conversation]


class _Written(_Page, kw_only=True):
    data: list[Raw]


def written_list(entries: Sequence[tuple[str, bytes]], has_more: bool) -> bytes:
    """The JSON of a list, from the ids of what is in it and the JSON of each."""
    first, last = (entries[0][0], entries[-1][0]) if entries else ("", "")
    return _encode(_Written(data=[Raw(entry) for _, entry in entries], first_id=first, last_id=last, has_more=has_more))
