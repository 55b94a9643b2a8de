"""A store over SQL: every method is one operation, which a driver carries out within one transaction.

Values that all who share a store have in common: whoever comes first says what they are.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

from antiphon.stores.base import (
    ApiKey,
    Approval,
    Bounds,
    Claim,
    Claimed,
    ConversationPage,
    ConversationRow,
    End,
    ItemRow,
    Key,
    Link,
    NewResponse,
    Page,
    ResponsePage,
    Schema,
    StoredResponse,
    Submission,
    Verdict,
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


def settle(name: str, new: bytes) -> Operation[bytes]:
    yield sql("INSERT INTO shared (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING", name, new)
    rows = yield sql("SELECT value FROM shared WHERE name = $1", name)
    return bytes(rows[0][0])


T = TypeVar("T")
Clock = Callable[[], float]


class SqlStore(ABC):
    name: str

    def __init__(self, ttl: float, clock: Clock = time.time) -> None:
        self._ttl = ttl
        self._clock = clock

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    def healthy(self) -> bool: ...

    @abstractmethod
    async def schema(self) -> Schema: ...

    @abstractmethod
    def _do(self, make: Callable[[], Operation[T]], *, write: bool) -> Awaitable[T]:
        """Carry out one operation. `make` may be called again, to begin anew."""

    async def begin(
        self, tenant: str, new: NewResponse, claim: Claim, key: Key | None = None, room: int | None = None
    ) -> str | None:
        now = self._clock()
        return await self._do(responses.beginning(tenant, new, claim, key, room, now), write=True)

    async def keyed(self, tenant: str, key: Key) -> str | None:
        now = self._clock()
        return await self._do(lambda: idempotency_keys.find(tenant, key, now), write=False)

    async def start(self, tenant: str, response_id: str, fence: int) -> None:
        await self._do(lambda: responses.start(tenant, response_id, fence), write=True)

    async def finish(self, tenant: str, end: End) -> None:
        now = self._clock()
        await self._do(responses.ending(tenant, end, now), write=True)

    async def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        now = self._clock()
        return await self._do(lambda: responses.get(tenant, response_id, now), write=False)

    async def chain(self, tenant: str, response_id: str, known: frozenset[str] = frozenset()) -> list[Link]:
        now = self._clock()
        return await self._do(lambda: responses.chain(tenant, response_id, known, now), write=False)

    async def delete(self, tenant: str, response_id: str) -> bool:
        now = self._clock()
        return await self._do(lambda: deletion.delete(tenant, response_id, now), write=True)

    async def renew(self, claim: Claim, ids: Collection[str]) -> set[str]:
        now = self._clock()
        return await self._do(lambda: leases.renew(claim, ids, now), write=True)

    async def claim(self, claim: Claim, background: int, released: bool = False) -> list[Claimed]:
        now = 0.0 if released else self._clock()
        return await self._do(lambda: leases.claim_orphans(claim, background, now), write=True)

    async def take(self, tenant: str, response_id: str, claim: Claim) -> StoredResponse | None:
        return await self._do(lambda: leases.take(tenant, response_id, claim), write=True)

    async def release(self, tenant: str, response_id: str, fence: int) -> None:
        await self._do(lambda: leases.release(tenant, response_id, fence), write=True)

    async def append(self, tenant: str, response_id: str, fence: int, number: int, batch: bytes) -> None:
        await self._do(lambda: live_batches.append(tenant, response_id, fence, number, batch), write=True)

    async def read(self, tenant: str, response_id: str, after: int) -> list[bytes]:
        return await self._do(lambda: live_batches.read(tenant, response_id, after), write=False)

    async def expect_outputs(self, tenant: str, response_id: str, fence: int, call_ids: Collection[str]) -> None:
        await self._do(lambda: tool_outputs.expect(tenant, response_id, fence, call_ids), write=True)

    async def submit_output(self, tenant: str, response_id: str, call_id: str, output: bytes) -> Submission:
        now = self._clock()
        return await self._do(lambda: tool_outputs.submit(tenant, response_id, call_id, output, now), write=True)

    async def outputs(self, tenant: str, response_id: str) -> dict[str, bytes | None]:
        return await self._do(lambda: tool_outputs.of(tenant, response_id), write=False)

    async def ask_approval(self, tenant: str, request_id: str, digest: bytes, expires: float) -> None:
        await self._do(lambda: approvals.ask(tenant, request_id, digest, expires), write=True)

    async def approval(self, tenant: str, request_id: str) -> Approval | None:
        now = self._clock()
        return await self._do(lambda: approvals.find(tenant, request_id, now), write=False)

    async def use_approval(self, tenant: str, request_id: str, digest: bytes) -> Verdict:
        now = self._clock()
        return await self._do(lambda: approvals.use(tenant, request_id, digest, now), write=True)

    async def create_conversation(self, tenant: str, row: ConversationRow, items: Sequence[ItemRow]) -> None:
        await self._do(lambda: conversations.create(tenant, row, items), write=True)

    async def conversation(self, tenant: str, conversation_id: str) -> ConversationRow | None:
        return await self._do(lambda: conversations.get(tenant, conversation_id), write=False)

    async def merge_metadata(
        self, tenant: str, conversation_id: str, changes: Mapping[str, str | None], most: int
    ) -> ConversationRow | None:
        now = self._clock()
        return await self._do(
            lambda: conversations.merge_metadata(tenant, conversation_id, changes, most, now), write=True
        )

    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        expires = self._clock() + self._ttl
        return await self._do(lambda: conversations.delete(tenant, conversation_id, expires), write=True)

    async def add_items(self, tenant: str, conversation_id: str, items: Sequence[ItemRow], most: int) -> bool:
        now = self._clock()
        return await self._do(lambda: conversations.add(tenant, conversation_id, items, most, now), write=True)

    async def all_items(self, tenant: str, conversation_id: str) -> list[bytes] | None:
        return await self._do(lambda: conversations.all_items(tenant, conversation_id), write=False)

    async def page_items(
        self, tenant: str, conversation_id: str, after: str | None, limit: int, descending: bool
    ) -> Page | None:
        return await self._do(
            lambda: conversations.page_items(tenant, conversation_id, after, limit, descending), write=False
        )

    async def item(self, tenant: str, conversation_id: str, item_id: str) -> bytes | None:
        return await self._do(lambda: conversations.item(tenant, conversation_id, item_id), write=False)

    async def delete_item(self, tenant: str, conversation_id: str, item_id: str) -> bool:
        now = self._clock()
        return await self._do(lambda: conversations.delete_item(tenant, conversation_id, item_id, now), write=True)

    async def find_item(self, tenant: str, item_id: str) -> bytes | None:
        now = self._clock()
        return await self._do(lambda: conversations.find_item(tenant, item_id, now), write=False)

    async def page_responses(
        self, tenant: str, after: str | None, limit: int, descending: bool, room: int
    ) -> ResponsePage:
        now = self._clock()
        return await self._do(lambda: lists.responses(tenant, after, limit, descending, room, now), write=False)

    async def page_conversations(
        self, tenant: str, after: str | None, limit: int, descending: bool
    ) -> ConversationPage:
        return await self._do(lambda: lists.conversations(tenant, after, limit, descending), write=False)

    async def add_api_key(self, key: ApiKey) -> None:
        await self._do(lambda: api_keys.add(key), write=True)

    async def find_api_keys(self, ids: Collection[str]) -> list[ApiKey]:
        return await self._do(lambda: api_keys.find(ids), write=False)

    async def api_keys(self) -> list[ApiKey]:
        return await self._do(api_keys.every, write=False)

    async def has_api_keys(self) -> bool:
        return await self._do(api_keys.any_there, write=False)

    async def revoke_api_key(self, key_id: str) -> ApiKey | None:
        now = self._clock()
        return await self._do(lambda: api_keys.revoke(key_id, now), write=True)

    async def shared(self, name: str, new: bytes) -> bytes:
        return await self._do(lambda: settle(name, new), write=True)

    async def sweep(self, bounds: Bounds, most: int = 500) -> int:
        now = self._clock()
        return await self._do(lambda: retention.sweep(bounds, most, now), write=True)

    async def tenants(self) -> dict[str, tuple[int, int]]:
        return await self._do(totals.tenants, write=False)
