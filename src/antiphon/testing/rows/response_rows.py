"""Builders of rows for the tests of stores, and a clock that tests can set."""

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.ids import new_id
from antiphon.stores.base import Claim, ConversationRow, IdempotencyKey, ItemRow, NewResponse, ResponseEnd
from antiphon.stores.sql.store import Store

TENANT = "tenant"
TTL = 1000.0
PACKED_LOG = b"tape"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def make_response(
    clock: Clock,
    *,
    background: bool = False,
    previous: str | None = None,
    conversation: str | None = None,
    text: str = "hello",
    rank: int = 1,
) -> NewResponse:
    name = new_id("resp")
    return NewResponse(
        id=name,
        status="queued" if background else "in_progress",
        background=background,
        rank=rank,
        created=clock(),
        deadline=clock() + 60 if background else None,
        previous=previous,
        conversation=conversation,
        request=msgspec.json.encode({"sent": ["input", "prompt"], "asked": {"input": [text], "prompt": "secret"}}),
        response=msgspec.json.encode({"id": name, "status": "in_progress", "metadata": {"a": "secret"}, "output": []}),
    )


def make_end(
    clock: Clock,
    new: NewResponse,
    fence: int = 1,
    *,
    text: str = "goodbye",
    expires: float | UnsetType | None = UNSET,
    items: tuple[ItemRow, ...] = (),
) -> ResponseEnd:
    """Return the end of a response that was begun."""
    body = {"id": new.id, "status": "completed", "metadata": {"a": "secret"}, "output": [text]}
    return ResponseEnd(
        id=new.id,
        fence=fence,
        status="completed",
        response=msgspec.json.encode(body),
        packed_log=PACKED_LOG,
        ended=clock(),
        expires=clock() + TTL if expires is UNSET else expires,
        conversation=new.conversation,
        items=items,
    )


def make_inserting_end(clock: Clock, new: NewResponse, expires: float | UnsetType | None = UNSET) -> ResponseEnd:
    """Return the end of a response that was never begun: it also inserts the row."""
    return msgspec.structs.replace(make_end(clock, new, 0, expires=expires), new=new)


async def store_response(store: Store, clock: Clock, previous: str | None = None, tenant: str = TENANT) -> str:
    """Store a completed response and return its id."""
    new = make_response(clock, previous=previous)
    await store.finish(tenant, make_inserting_end(clock, new))
    return new.id


async def begin_response(
    store: Store, clock: Clock, *, background: bool = False, previous: str | None = None
) -> NewResponse:
    new = make_response(clock, background=background, previous=previous)
    await store.begin(TENANT, new, make_claim(clock))
    return new


def make_claim(clock: Clock, name: str = "owner", seconds: float = 10) -> Claim:
    return Claim(name, clock() + seconds)


def make_key(clock: Clock, name: str = "key", digest: bytes = b"digest") -> IdempotencyKey:
    return IdempotencyKey(name, digest, clock() + 100)


def make_item(text: str = "item") -> ItemRow:
    return ItemRow(new_id("msg"), text.encode())


async def store_conversation(store: Store, clock: Clock, *items: ItemRow, tenant: str = TENANT) -> str:
    """Create a conversation and return its id."""
    row = ConversationRow(new_id("conv"), clock(), {"a": "b"})
    await store.create_conversation(tenant, row, items)
    return row.id
