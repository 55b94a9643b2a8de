"""Paginated lists. `last_id` of one page is `after` of the next. A page may hold fewer entries than requested."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, Self

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
    """Query of a single object. Encrypted reasoning is returned only on request; all other stored fields always are."""

    include: list[Includable] = field(default_factory=list)


class ListQuery(Struct, frozen=True, kw_only=True):
    """Query parameters of a list."""

    limit: Limit = 20
    order: Order = "desc"
    after: str | None = None


class ItemsQuery(ListQuery, frozen=True, kw_only=True):
    """Query parameters of a list of items."""

    include: list[Includable] = field(default_factory=list)


class ListPage(Struct, kw_only=True):
    """One page. The ids of an empty page are empty strings, since OpenAI's types do not allow null there."""

    object: Literal["list"] = "list"
    data: list[Any]
    first_id: str
    last_id: str
    has_more: bool

    @classmethod
    def make(cls, entries: Iterable[Any], has_more: bool, last_id: str | None = None) -> Self:
        """Return a page of objects with ids. `last_id`: where the next one begins, if not after the last entry."""
        data = [*entries]
        first, last = (data[0].id, data[-1].id) if data else ("", "")
        return cls(data=data, first_id=first, last_id=last_id or last, has_more=has_more)


class ItemList(ListPage, kw_only=True):
    data: list[InputItem]


class ResponseList(ListPage, kw_only=True):
    """A page of responses. An extension: OpenAI's API has no such list."""

    data: list[Response]


class ConversationList(ListPage, kw_only=True):
    """A page of conversations. An extension: OpenAI's API has no such list."""

    data: list[Conversation]


class _EncodedPage(ListPage, kw_only=True):
    data: list[Raw]


def encode_list(entries: Sequence[tuple[str, bytes | Raw]], has_more: bool) -> bytes:
    """Encode a page from the id and the JSON of each entry."""
    first, last = (entries[0][0], entries[-1][0]) if entries else ("", "")
    return _encode(
        _EncodedPage(data=[Raw(entry) for _, entry in entries], first_id=first, last_id=last, has_more=has_more)
    )
