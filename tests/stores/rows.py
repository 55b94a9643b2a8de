"""Rows to put into a store, and a clock to set."""

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.ids import new_id
from antiphon.stores.base import Claim, ConversationRow, End, ItemRow, Key, NewResponse, Store

TENANT = "tenant"
TTL = 1000.0
TAPE = b"tape"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def response(
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


def end(
    clock: Clock,
    new: NewResponse,
    fence: int = 1,
    *,
    text: str = "goodbye",
    expires: float | UnsetType | None = UNSET,
    items: tuple[ItemRow, ...] = (),
) -> End:
    """Of a row that was begun."""
    said = {"id": new.id, "status": "completed", "metadata": {"a": "secret"}, "output": [text]}
    return End(
        id=new.id,
        fence=fence,
        status="completed",
        response=msgspec.json.encode(said),
        tape=TAPE,
        ended=clock(),
        expires=clock() + TTL if expires is UNSET else expires,
        conversation=new.conversation,
        items=items,
    )


def whole(clock: Clock, new: NewResponse, expires: float | UnsetType | None = UNSET) -> End:
    """Of a row that was never begun."""
    return msgspec.structs.replace(end(clock, new, 0, expires=expires), new=new)


async def kept(store: Store, clock: Clock, previous: str | None = None, tenant: str = TENANT) -> str:
    """The id of a response that has begun and ended."""
    new = response(clock, previous=previous)
    await store.finish(tenant, whole(clock, new))
    return new.id


async def running(store: Store, clock: Clock, *, background: bool = False, previous: str | None = None) -> NewResponse:
    new = response(clock, background=background, previous=previous)
    await store.begin(TENANT, new, owner(clock))
    return new


def owner(clock: Clock, name: str = "owner", seconds: float = 10) -> Claim:
    return Claim(name, clock() + seconds)


def key(clock: Clock, name: str = "key", digest: bytes = b"digest") -> Key:
    return Key(name, digest, clock() + 100)


def item(text: str = "item") -> ItemRow:
    return ItemRow(new_id("msg"), text.encode())


async def talk(store: Store, clock: Clock, *items: ItemRow, tenant: str = TENANT) -> str:
    """The id of a new conversation."""
    row = ConversationRow(new_id("conv"), clock(), {"a": "b"})
    await store.create_conversation(tenant, row, items)
    return row.id
