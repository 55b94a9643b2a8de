"""Lists of items, a page at a time; `last_id` of one page is `after` of the next."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct, field

from antiphon.protocol.items import InputItem
from antiphon.protocol.request import Includable

Order = Literal["asc", "desc"]
Limit = Annotated[int, Meta(ge=1, le=100)]

_encode = msgspec.json.Encoder().encode


class IncludeQuery(Struct, frozen=True, kw_only=True):
    """Sealed reasoning is shown on request; all else that is kept is shown anyway."""

    include: list[Includable] = field(default_factory=list)


class ItemsQuery(Struct, frozen=True, kw_only=True):
    """What a client may ask of a list of items."""

    limit: Limit = 20
    order: Order = "desc"
    after: str | None = None
    include: list[Includable] = field(default_factory=list)


class ItemList(Struct, kw_only=True):
    """An empty page has empty ids: OpenAI's types know no null there."""

    object: Literal["list"] = "list"
    data: list[InputItem]
    first_id: str
    last_id: str
    has_more: bool


class _Written(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Raw]
    first_id: str
    last_id: str
    has_more: bool


def item_list(items: Sequence[tuple[str, bytes]], has_more: bool) -> bytes:
    """The JSON of an ItemList, from the ids of items and their JSON."""
    first, last = (items[0][0], items[-1][0]) if items else ("", "")
    return _encode(_Written(data=[Raw(item) for _, item in items], first_id=first, last_id=last, has_more=has_more))
