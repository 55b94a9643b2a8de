"""What was stored, for those who come back for it: a response, its input, its deletion, and a list of all there are."""

import asyncio
from collections.abc import Awaitable, Callable, Collection

from antiphon.errors import InvalidValue, NotFound
from antiphon.ids import is_id
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.items import InputItem
from antiphon.protocol.types.lists import ItemsQuery, ListQuery, written_list
from antiphon.protocol.types.request import Includable
from antiphon.service.persistence.include_view import Show, Showing, so_far
from antiphon.service.persistence.stored_request import input_items, shown
from antiphon.stores.base import RUNNING, Store, StoredResponse
from antiphon.stores.live.base import LiveLog

Deleted = Callable[[str, str], Awaitable[None]]  # is told the tenant and the id

_SHOWN = 64  # characters of an id that was sent

_PAGE_BYTES = 4 * 1024 * 1024  # of responses in one page of a list; it is shorter where they are long

_AT_ONCE = 256 * 1024  # bytes of a request that are read where they are asked for; more goes to a thread


def check_keeps(keeps: bool) -> None:
    if not keeps:
        raise NotFound("This server keeps no responses and no conversations: it was started with --disable-store.")


class Stored:
    def __init__(self, store: Store, live: LiveLog, on_delete: Deleted, showing: Showing, keeps: bool = True) -> None:
        self._store = store
        self._live = live
        self._showing = showing
        self._on_delete = on_delete
        self._keeps = keeps

    async def get(self, tenant: str, response_id: str, include: Collection[Includable] = ()) -> bytes:
        """Its JSON: as it ended, or as it began with the status that it has by now. Of one that waits for its client's
        tools all that is done so far, so that the client knows what it waits for."""
        row = await self._row(tenant, response_id)
        waits = row.waited and row.status in RUNNING
        body = await so_far(self._live, tenant, row) if waits else shown(row)
        return await self._showing.response(tenant, body, include)

    async def page(self, tenant: str, asked: ListQuery) -> bytes:
        """The tenant's own, each as `get` gives it but for what is done so far."""
        check_keeps(self._keeps)
        if asked.after is not None and not is_id(asked.after, "resp"):
            raise InvalidValue(f"There is no response {asked.after[:_SHOWN]!r} in this list.", param="after")
        descending = asked.order == "desc"
        page = await self._store.page_responses(tenant, asked.after, asked.limit, descending, _PAGE_BYTES)
        bodies = [(row.id, await self._showing.response(tenant, shown(row), ())) for row in page.rows]
        return written_list(bodies, page.has_more)

    async def delete(self, tenant: str, response_id: str) -> None:
        self.check(response_id)
        if not await self._store.delete(tenant, response_id):
            raise unknown(response_id)
        await self._on_delete(tenant, response_id)

    async def input_items(self, tenant: str, response_id: str, asked: ItemsQuery) -> bytes:
        """A page of its own input, without what came before it."""
        row = await self._row(tenant, response_id)
        show = self._showing.items(tenant, asked.include)
        if len(row.request) <= _AT_ONCE:
            return _page(row.request, asked, show)
        return await asyncio.to_thread(_page, row.request, asked, show)

    async def input(self, tenant: str, response_id: str) -> list[InputItem]:
        """All of it, in the order in which it was sent."""
        row = await self._row(tenant, response_id)
        return await asyncio.to_thread(input_items, row.request)

    def check(self, response_id: str) -> None:
        """Raises NotFound for an id that cannot be here, so that the store need not be asked."""
        check_keeps(self._keeps)
        if not is_id(response_id, "resp"):
            raise unknown(response_id)

    async def _row(self, tenant: str, response_id: str) -> StoredResponse:
        self.check(response_id)
        row = await self._store.get(tenant, response_id)
        if row is None:
            raise unknown(response_id)
        return row


def unknown(response_id: str) -> NotFound:
    return NotFound(f"There is no response {response_id[:_SHOWN]!r}.")


def _page(request: bytes, asked: ItemsQuery, show: Show) -> bytes:
    items = input_items(request)
    rest = _after(items[::-1] if asked.order == "desc" else items, asked.after)
    page = rest[: asked.limit]
    return written_list([(str(item.id), encode(show(item))) for item in page], len(rest) > len(page))


def _after(items: list[InputItem], cursor: str | None) -> list[InputItem]:
    if cursor is None:
        return items
    for index, item in enumerate(items):
        if item.id == cursor:
            return items[index + 1 :]
    raise InvalidValue(f"There is no item {cursor[:_SHOWN]!r} in the input of this response.", param="after")
