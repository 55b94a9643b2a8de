"""Work that waits for a client: calls that it has to approve, and responses that need outputs of its tools.

The store has the ids of both; the items are read from the responses, a bounded number of bytes for each page.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from msgspec import Struct

from antiphon.ids import parse_response_id
from antiphon.offload import run_sized
from antiphon.protocol.types.items import CustomToolCall, FunctionCall, McpApprovalRequest, OutputItem
from antiphon.protocol.types.lists import ListQuery
from antiphon.protocol.types.operations.activity import (
    ApprovalList,
    PendingApproval,
    WaitingCall,
    WaitingList,
    WaitingResponse,
)
from antiphon.service.persistence.stored_responses import check_store_enabled, render_progress
from antiphon.stores.base import Page, StoredResponse
from antiphon.stores.live.base import LiveLog
from antiphon.stores.sql.store import Store

T = TypeVar("T")

_MAX_PAGE_BYTES = 4 * 1024 * 1024  # of responses that are read for one page


class _Body(Struct):
    model: str
    output: list[OutputItem] = []


class _Contents(Struct, frozen=True):
    """A response with its output so far, and how many bytes were read for it."""

    row: StoredResponse
    body: _Body
    size: int


_bodies = msgspec.json.Decoder(_Body)


class Inbox(Struct, frozen=True, eq=False):
    _store: Store
    _live: LiveLog
    _store_enabled: bool = True

    async def list_approvals(self, tenant: str, query: ListQuery) -> ApprovalList:
        check_store_enabled(self._store_enabled)
        page = await self._store.page_approvals(tenant, query.after, query.limit, query.order == "desc")
        found, next_after = await self._read(tenant, page, _to_approval)
        return ApprovalList.make(found, next_after is not None, next_after)

    async def list_waiting(self, tenant: str, query: ListQuery) -> WaitingList:
        check_store_enabled(self._store_enabled)
        page = await self._store.page_waiting(tenant, query.after, query.limit, query.order == "desc")

        async def to_waiting(name: str, contents: _Contents) -> WaitingResponse | None:
            return _to_waiting(contents, await self._store.outputs(tenant, name))

        found, next_after = await self._read(tenant, page, to_waiting)
        return WaitingList.make(found, next_after is not None, next_after)

    async def _read(
        self, tenant: str, page: Page[str], convert: Callable[[str, _Contents], Awaitable[T | None]]
    ) -> tuple[list[T], str | None]:
        """Return the entries of a page, and the cursor of the next one: None if this is the last.

        An id without an entry was answered, deleted or never stored meanwhile.
        """
        found: list[T] = []
        contents: _Contents | None = None
        size, last = 0, ""
        for name in page.rows:
            response_id = parse_response_id(name) or name
            if contents is None or contents.row.id != response_id:
                contents = await self._load(tenant, response_id)
                size += 0 if contents is None else contents.size
            if size > _MAX_PAGE_BYTES and last:
                return found, last
            last = name
            if contents is not None and (entry := await convert(name, contents)) is not None:
                found.append(entry)
        return found, last if page.has_more else None

    async def _load(self, tenant: str, response_id: str) -> _Contents | None:
        if (row := await self._store.get(tenant, response_id, with_request=False)) is None:
            return None
        body = row.response if row.packed_log is not None else await render_progress(self._live, tenant, row)
        return _Contents(row, await run_sized(len(body), _bodies.decode, body), len(body))


async def _to_approval(name: str, contents: _Contents) -> PendingApproval | None:
    for item in contents.body.output:
        if type(item) is McpApprovalRequest and item.id == name:
            return PendingApproval(
                id=name,
                response_id=contents.row.id,
                created_at=contents.row.created,
                model=contents.body.model,
                conversation=contents.row.conversation,
                item=item,
            )
    return None


def _to_waiting(contents: _Contents, outputs: dict[str, bytes | None]) -> WaitingResponse | None:
    items = {item.call_id: item for item in contents.body.output if isinstance(item, FunctionCall | CustomToolCall)}
    calls = [WaitingCall(call_id=name, item=items.get(name)) for name, output in outputs.items() if output is None]
    if not calls:
        return None
    return WaitingResponse(
        id=contents.row.id,
        created_at=contents.row.created,
        model=contents.body.model,
        background=contents.row.background,
        conversation=contents.row.conversation,
        calls=calls,
    )
