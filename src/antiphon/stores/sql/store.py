"""A store over SQL: every method is one operation, which a driver runs within one transaction."""

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

from antiphon.stores.base import (
    ApiKey,
    Approval,
    ApprovalVerdict,
    ChainLink,
    Claim,
    ClaimedResponse,
    ConversationPage,
    ConversationRow,
    IdempotencyKey,
    ItemPage,
    ItemRow,
    NewResponse,
    OutputSubmission,
    ResponseEnd,
    ResponsePage,
    RetentionBounds,
    SchemaStatus,
    StoredResponse,
)
from antiphon.stores.sql import (
    api_keys,
    approvals,
    conversations,
    deletion,
    idempotency_keys,
    leases,
    lists,
    live_batches,
    responses,
    retention,
    tool_outputs,
    totals,
)
from antiphon.stores.sql.operation import Operation, sql


def get_or_insert(name: str, new: bytes) -> Operation[bytes]:
    """Return the shared value under this name, inserting `new` if there is none: the first server decides."""
    yield sql("INSERT INTO shared (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING", name, new)
    rows = yield sql("SELECT value FROM shared WHERE name = $1", name)
    return bytes(rows[0][0])


T = TypeVar("T")
Clock = Callable[[], float]


class SqlStore(ABC):
    """Implements `Store` on top of `_run`, which a database driver provides."""

    name: str

    def __init__(self, ttl: float, clock: Clock = time.time) -> None:
        self._ttl = ttl
        self._clock = clock

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    def is_healthy(self) -> bool: ...

    @abstractmethod
    async def schema(self) -> SchemaStatus: ...

    @abstractmethod
    def _run(self, make: Callable[[], Operation[T]], *, write: bool) -> Awaitable[T]:
        """Run one operation. `make` may be called again to restart it."""

    async def begin(
        self,
        tenant: str,
        new: NewResponse,
        claim: Claim,
        key: IdempotencyKey | None = None,
        max_background: int | None = None,
    ) -> str | None:
        now = self._clock()
        return await self._run(responses.prepare_begin(tenant, new, claim, key, max_background, now), write=True)

    async def keyed(self, tenant: str, key: IdempotencyKey) -> str | None:
        now = self._clock()
        return await self._run(lambda: idempotency_keys.find(tenant, key, now), write=False)

    async def start(self, tenant: str, response_id: str, fence: int) -> None:
        await self._run(lambda: responses.start(tenant, response_id, fence), write=True)

    async def finish(self, tenant: str, end: ResponseEnd) -> None:
        now = self._clock()
        await self._run(responses.prepare_finish(tenant, end, now), write=True)

    async def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        now = self._clock()
        return await self._run(lambda: responses.get(tenant, response_id, now), write=False)

    async def chain(self, tenant: str, response_id: str, stop_at: frozenset[str] = frozenset()) -> list[ChainLink]:
        now = self._clock()
        return await self._run(lambda: responses.chain(tenant, response_id, stop_at, now), write=False)

    async def delete(self, tenant: str, response_id: str) -> bool:
        now = self._clock()
        return await self._run(lambda: deletion.delete(tenant, response_id, now), write=True)

    async def renew(self, claim: Claim, ids: Collection[str]) -> set[str]:
        now = self._clock()
        return await self._run(lambda: leases.renew(claim, ids, now), write=True)

    async def claim(self, claim: Claim, max_background: int, released: bool = False) -> list[ClaimedResponse]:
        now = 0.0 if released else self._clock()
        return await self._run(lambda: leases.claim_orphans(claim, max_background, now), write=True)

    async def take(self, tenant: str, response_id: str, claim: Claim) -> StoredResponse | None:
        return await self._run(lambda: leases.take(tenant, response_id, claim), write=True)

    async def release(self, tenant: str, response_id: str, fence: int) -> None:
        await self._run(lambda: leases.release(tenant, response_id, fence), write=True)

    async def append(self, tenant: str, response_id: str, fence: int, number: int, batch: bytes) -> None:
        await self._run(lambda: live_batches.append(tenant, response_id, fence, number, batch), write=True)

    async def read(self, tenant: str, response_id: str, after: int) -> list[bytes]:
        return await self._run(lambda: live_batches.read(tenant, response_id, after), write=False)

    async def expect_outputs(self, tenant: str, response_id: str, fence: int, call_ids: Collection[str]) -> None:
        await self._run(lambda: tool_outputs.expect(tenant, response_id, fence, call_ids), write=True)

    async def submit_output(self, tenant: str, response_id: str, call_id: str, output: bytes) -> OutputSubmission:
        now = self._clock()
        return await self._run(lambda: tool_outputs.submit(tenant, response_id, call_id, output, now), write=True)

    async def outputs(self, tenant: str, response_id: str) -> dict[str, bytes | None]:
        return await self._run(lambda: tool_outputs.read_all(tenant, response_id), write=False)

    async def ask_approval(self, tenant: str, request_id: str, digest: bytes, expires: float) -> None:
        await self._run(lambda: approvals.add_request(tenant, request_id, digest, expires), write=True)

    async def approval(self, tenant: str, request_id: str) -> Approval | None:
        now = self._clock()
        return await self._run(lambda: approvals.find(tenant, request_id, now), write=False)

    async def use_approval(self, tenant: str, request_id: str, digest: bytes) -> ApprovalVerdict:
        now = self._clock()
        return await self._run(lambda: approvals.use(tenant, request_id, digest, now), write=True)

    async def create_conversation(self, tenant: str, row: ConversationRow, items: Sequence[ItemRow]) -> None:
        await self._run(lambda: conversations.create(tenant, row, items), write=True)

    async def conversation(self, tenant: str, conversation_id: str) -> ConversationRow | None:
        return await self._run(lambda: conversations.get(tenant, conversation_id), write=False)

    async def merge_metadata(
        self, tenant: str, conversation_id: str, changes: Mapping[str, str | None], max_pairs: int
    ) -> ConversationRow | None:
        now = self._clock()
        return await self._run(
            lambda: conversations.merge_metadata(tenant, conversation_id, changes, max_pairs, now), write=True
        )

    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        expires = self._clock() + self._ttl
        return await self._run(lambda: conversations.delete(tenant, conversation_id, expires), write=True)

    async def add_items(self, tenant: str, conversation_id: str, items: Sequence[ItemRow], max_items: int) -> bool:
        now = self._clock()
        return await self._run(lambda: conversations.add(tenant, conversation_id, items, max_items, now), write=True)

    async def all_items(self, tenant: str, conversation_id: str) -> list[bytes] | None:
        return await self._run(lambda: conversations.all_items(tenant, conversation_id), write=False)

    async def page_items(
        self, tenant: str, conversation_id: str, after: str | None, limit: int, descending: bool
    ) -> ItemPage | None:
        return await self._run(
            lambda: conversations.page_items(tenant, conversation_id, after, limit, descending), write=False
        )

    async def item(self, tenant: str, conversation_id: str, item_id: str) -> bytes | None:
        return await self._run(lambda: conversations.get_item(tenant, conversation_id, item_id), write=False)

    async def delete_item(self, tenant: str, conversation_id: str, item_id: str) -> bool:
        now = self._clock()
        return await self._run(lambda: conversations.delete_item(tenant, conversation_id, item_id, now), write=True)

    async def find_item(self, tenant: str, item_id: str) -> bytes | None:
        now = self._clock()
        return await self._run(lambda: conversations.find_item(tenant, item_id, now), write=False)

    async def page_responses(
        self, tenant: str, after: str | None, limit: int, descending: bool, max_bytes: int
    ) -> ResponsePage:
        now = self._clock()
        return await self._run(
            lambda: lists.page_responses(tenant, after, limit, descending, max_bytes, now), write=False
        )

    async def page_conversations(
        self, tenant: str, after: str | None, limit: int, descending: bool
    ) -> ConversationPage:
        return await self._run(lambda: lists.page_conversations(tenant, after, limit, descending), write=False)

    async def add_api_key(self, key: ApiKey) -> None:
        await self._run(lambda: api_keys.add(key), write=True)

    async def find_api_keys(self, ids: Collection[str]) -> list[ApiKey]:
        return await self._run(lambda: api_keys.find(ids), write=False)

    async def api_keys(self) -> list[ApiKey]:
        return await self._run(api_keys.list_all, write=False)

    async def has_api_keys(self) -> bool:
        return await self._run(api_keys.has_any, write=False)

    async def revoke_api_key(self, key_id: str) -> ApiKey | None:
        now = self._clock()
        return await self._run(lambda: api_keys.revoke(key_id, now), write=True)

    async def shared(self, name: str, new: bytes) -> bytes:
        return await self._run(lambda: get_or_insert(name, new), write=True)

    async def sweep(self, bounds: RetentionBounds, limit: int = 500) -> int:
        now = self._clock()
        return await self._run(lambda: retention.sweep(bounds, limit, now), write=True)

    async def tenants(self) -> dict[str, tuple[int, int]]:
        return await self._run(totals.list_tenants, write=False)
