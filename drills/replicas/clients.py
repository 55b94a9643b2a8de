"""Clients of replicas under drill, as real ones are: each asks again, with the same Idempotency-Key, when it was hung
up on or told to come back later, takes a stream up where it broke off, and polls what runs in the background.

Whatever goes wrong on the way is a Fault, with the process that it happened at. Whether it had a reason is judged
later.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Literal

from msgspec import Struct, field

from drills.harness.client import GONE, Answer, Client, Stream
from drills.harness.oracle import TERMINAL, event
from drills.harness.runs import STUCK_SECONDS, Kind, Run
from drills.replicas.proxy import Proxy

What = Literal["hung up", "refused", "cut off", "broken off", "failed", "silent", "wrong"]
GIVE_UP_SECONDS = 120.0  # after the first try
_TURNS = 12  # of a conversation
_POLL_SECONDS = 0.1
_PAUSE = 0.1  # before another try, if nobody says how long
_WORDS = "a replica is one of several, and when it is gone another one goes on with what it had begun to do " * 2


class Fault(Struct, frozen=True, kw_only=True):
    """`refused`: 429 or 5xx instead of an answer. `cut off`: a stream without an end. `broken off`: one that ends with
    an `error` of the server's own. `failed`: a response's end. `silent`: nothing came in time."""

    what: What
    label: str
    began: float
    at: float
    pid: int  # the process; 0: the proxy found none
    code: str = ""
    waits: bool = True  # it said when to come back, where that is to be said
    said: str = ""


class Ask(Struct, kw_only=True):
    """A response that a client wants, however often it has to ask."""

    label: str
    run: Run
    key: str | None = None
    more: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    tries: int = 0
    ids: set[str] = field(default_factory=set)  # that it was told
    pids: set[int] = field(default_factory=set)  # processes that it was sent to
    given_up: bool = False
    completed: bool = False

    def note(self) -> None:
        if self.run.id:
            self.ids.add(self.run.id)


def new_ask(label: str, kind: Kind, keyed: bool = True, **more: Any) -> Ask:
    run = Run(kind=kind, said=_WORDS[: random.randrange(20, 190)])
    return Ask(label=label, run=run, key=f"key-{run.nonce}" if keyed else None, more=more)


class World(Struct):
    """What all clients have in common."""

    proxy: Proxy
    asks: list[Ask] = []
    faults: list[Fault] = []
    talks: dict[str, list[Run]] = {}  # conversations
    over: bool = False  # nobody begins anything new


class Caller(Client):
    """One client, with one connection at a time; it knows which process it was sent to."""

    seconds = STUCK_SECONDS  # what was left behind may take as long

    def __init__(self, world: World) -> None:
        super().__init__(world.proxy.port)
        self.world = world
        self.at = 0  # its own port

    @property
    def pid(self) -> int:
        return self.world.proxy.carrier(self.at)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await super()._connect()
        self.at = writer.get_extra_info("sockname")[1]
        return reader, writer

    def fault(self, ask: Ask, what: What, code: str = "", waits: bool = True, said: str = "") -> None:
        found = Fault(
            what=what,
            label=ask.label,
            began=ask.began,
            at=time.monotonic(),
            pid=self.pid,
            code=code,
            waits=waits,
            said=said,
        )
        self.world.faults.append(found)

    def refused(self, ask: Ask, answer: Answer) -> None:
        temporary = answer.status == 429 or answer.status >= 500
        code = str(answer.error().get("code"))
        if code == "server_restarted":  # that is how the response has ended
            self.fault(ask, "failed", code)
            ask.given_up = True
            return
        said = f"{answer.status} {answer.body[:300].decode(errors='replace')}"
        self.fault(ask, "refused" if temporary else "wrong", code, answer.waits, said)
        ask.given_up = not temporary


async def answer(caller: Caller, ask: Ask) -> None:
    """JSON, or what is queued in the background and then polled."""
    for _ in tries(caller, ask):
        async with noted(caller, ask):
            got = await caller.post(ask.run.body(**ask.more), key=ask.key)
            if got.status != 200:
                caller.refused(ask, got)
                await come_back(got.retry_after)
                continue
            response = got.json()
            ask.run.id = response["id"]
            ask.run.seen(got.body, response)
            ask.note()
            break
    if ask.run.kind == "background" and ask.run.id:
        await _poll(caller, ask)


async def _poll(caller: Caller, ask: Ask) -> None:
    run = ask.run
    for _ in tries(caller, ask):
        async with noted(caller, ask):
            got = await caller.get(f"/v1/responses/{run.id}")
            if got.status != 200:
                caller.refused(ask, got)
                await come_back(got.retry_after)
                continue
            run.seen(got.body, got.json())
            if run.terminal is not None:
                note_end(caller, ask, got.json())
                return
            await asyncio.sleep(_POLL_SECONDS)


async def stream(caller: Caller, ask: Ask) -> None:
    """A stream; what breaks off is gone on with, as far as anybody can: by GET, behind the last event that came."""
    run = ask.run
    for _ in tries(caller, ask):
        if not run.frames:
            where = caller.open("POST", "/v1/responses", ask.run.body(**ask.more), ask.key)
        else:
            resumed = run.kind == "background stream"  # else another server may tell it otherwise, or not at all
            after = f"&starting_after={len(run.frames) - 1}" if resumed else ""
            where = caller.open("GET", f"/v1/responses/{run.id}?stream=true{after}")
        async with noted(caller, ask), asyncio.timeout(caller.seconds), where as opened:
            if not opened.streams:
                got = Answer(opened.status, await opened.body(), opened.retry_after)
                caller.refused(ask, got)
                await come_back(got.retry_after)
                continue
            await _heard(caller, ask, opened)
        if run.whole or (run.frames and run.kind != "background stream"):
            return


async def _heard(caller: Caller, ask: Ask, opened: Stream) -> None:
    """To its end, if it has one. What a server says of itself when it breaks off is no event of the response."""
    run, before = ask.run, list(ask.run.frames)
    try:
        await opened.read()
    except GONE:
        caller.fault(ask, "cut off" if opened.frames or before else "hung up")
    finally:
        frames = list(opened.frames)
        if frames and event(frames[-1])["type"] == "error":
            broken = event(frames.pop())
            caller.fault(ask, "broken off", str(broken.get("code")), broken.get("retry_after") is not None)
        run.frames = before + frames
        if run.frames and not run.id:
            run.id = event(run.frames[0])["response"]["id"]
        ask.note()
        last = event(run.frames[-1]) if run.frames else {}
        if last.get("type") in TERMINAL:
            run.whole, run.terminal_at = opened.done, time.monotonic()
            note_end(caller, ask, last["response"])


def note_end(caller: Caller, ask: Ask, response: dict[str, Any]) -> None:
    ask.completed = response["status"] == "completed"
    if not ask.completed:
        caller.fault(ask, "failed", (response["error"] or {}).get("code") or response["status"])


def tries(caller: Caller, ask: Ask) -> Iterator[None]:
    """Again and again, as long as anybody has patience."""
    until = time.monotonic() + GIVE_UP_SECONDS
    while not ask.given_up:
        if time.monotonic() > until:
            caller.fault(ask, "silent", said=f"no answer after {GIVE_UP_SECONDS:.0f} s and {ask.tries} tries")
            ask.given_up = True
            return
        ask.tries += 1
        yield


@asynccontextmanager
async def noted(caller: Caller, ask: Ask) -> AsyncIterator[None]:
    """Whom it was sent to, and whether it was hung up on."""
    try:
        yield
    except GONE:
        caller.fault(ask, "hung up")
        await asyncio.sleep(_PAUSE)
    except TimeoutError:
        caller.fault(ask, "silent")
    finally:
        ask.pids.add(caller.pid)


async def come_back(seconds: float | None) -> None:
    """As it was told; a little of it, so that nobody comes when all others come."""
    await asyncio.sleep(_PAUSE if seconds is None else seconds * random.uniform(0.3, 1.0))


async def json_load(world: World) -> None:
    """Every other one without a key: such a client has nothing to ask again with, and asks anew."""
    caller, number = Caller(world), 0
    while not world.over:
        number += 1
        await answer(caller, asked(world, new_ask("json", "foreground JSON", keyed=number % 2 == 0)))


async def stream_load(world: World) -> None:
    caller, number = Caller(world), 0
    while not world.over:
        number += 1
        await stream(caller, asked(world, new_ask("stream", "foreground stream", keyed=number % 2 == 0)))


async def background_load(world: World) -> None:
    caller = Caller(world)
    while not world.over:
        await answer(caller, asked(world, new_ask("background", "background")))


async def background_stream_load(world: World) -> None:
    caller = Caller(world)
    while not world.over:
        await stream(caller, asked(world, new_ask("background stream", "background stream")))


async def talk_load(world: World) -> None:
    """Conversations of some turns each, in turn as JSON and as a stream, one turn after the other."""
    caller = Caller(world)
    while not world.over:
        conversation = await _begun(caller, world)
        for number in range(_TURNS):
            if world.over or not conversation:
                break
            kind: Kind = "foreground stream" if number % 2 else "foreground JSON"
            ask = asked(world, new_ask("conversation", kind, conversation=conversation))
            world.talks[conversation].append(ask.run)
            await (stream if number % 2 else answer)(caller, ask)


async def _begun(caller: Caller, world: World) -> str:
    """The id of a new conversation."""
    ask, conversation = new_ask("new conversation", "foreground JSON", keyed=False), ""
    for _ in tries(caller, ask):
        async with noted(caller, ask):
            got = await caller.post({}, "/v1/conversations")
            if got.status == 200:
                conversation = str(got.json()["id"])
                world.talks[conversation] = []
                break
            caller.refused(ask, got)
            await come_back(got.retry_after)
    return conversation


def asked(world: World, ask: Ask) -> Ask:
    world.asks.append(ask)
    return ask
