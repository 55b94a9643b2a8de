"""Clients of replicas under drill that behave like real ones.

Each retries with the same Idempotency-Key after a disconnect or a temporary rejection, resumes a stream after the last
received event, and polls background work. Every problem is recorded as a Fault with the process at which it occurred;
`verification.py` decides later whether there was a reason for it.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Literal

from msgspec import Struct, field

from drills.harness.client import DISCONNECT_ERRORS, Answer, Client, Stream
from drills.harness.oracle import TERMINAL, parse_event
from drills.harness.runs import STUCK_SECONDS, Run, RunKind
from drills.replicas.proxy import Proxy

FaultKind = Literal["hung up", "refused", "cut off", "broken off", "failed", "silent", "wrong"]
GIVE_UP_SECONDS = 120.0  # after the first attempt
_TURNS = 12  # per conversation
_POLL_SECONDS = 0.1
_RETRY_SECONDS = 0.1  # before the next attempt, without a Retry-After
_SAMPLE_TEXT = "a replica is one of several, and when it is gone another one goes on with what it had begun to do " * 2


class Fault(Struct, frozen=True, kw_only=True):
    """`hung up`: disconnected before any answer. `refused`: 429 or 5xx instead of an answer. `cut off`: a stream
    without an end. `broken off`: a stream that ends with an `error` event of the server. `failed`: the end of a
    response. `silent`: no answer in time. `wrong`: any other rejection.
    """

    kind: FaultKind
    label: str
    began: float
    at: float
    pid: int  # process id; 0: the proxy found no server
    code: str = ""
    has_retry_after: bool = True  # a Retry-After was sent, where one is required
    detail: str = ""


class LoadRequest(Struct, kw_only=True):
    """A response that a client requests, in as many attempts as necessary."""

    label: str
    run: Run
    key: str | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    attempts: int = 0
    ids: set[str] = field(default_factory=set)  # received response ids
    pids: set[int] = field(default_factory=set)  # processes that handled the attempts
    given_up: bool = False
    completed: bool = False

    def note_id(self) -> None:
        if self.run.id:
            self.ids.add(self.run.id)


def new_request(label: str, kind: RunKind, keyed: bool = True, **fields: Any) -> LoadRequest:
    run = Run(kind=kind, prompt=_SAMPLE_TEXT[: random.randrange(20, 190)])
    return LoadRequest(label=label, run=run, key=f"key-{run.nonce}" if keyed else None, fields=fields)


class LoadState(Struct):
    """Shared state of all clients."""

    proxy: Proxy
    requests: list[LoadRequest] = []
    faults: list[Fault] = []
    conversations: dict[str, list[Run]] = {}  # runs by conversation id
    stopping: bool = False  # no client starts a new request


class Caller(Client):
    """One client with one connection at a time; it knows the process that handles the connection."""

    seconds = STUCK_SECONDS  # a takeover may take as long

    def __init__(self, state: LoadState) -> None:
        super().__init__(state.proxy.port)
        self.state = state
        self.local_port = 0  # local port of the current connection

    @property
    def pid(self) -> int:
        return self.state.proxy.get_backend_pid(self.local_port)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await super()._connect()
        self.local_port = writer.get_extra_info("sockname")[1]
        return reader, writer

    def record_fault(
        self, request: LoadRequest, kind: FaultKind, code: str = "", has_retry_after: bool = True, detail: str = ""
    ) -> None:
        found = Fault(
            kind=kind,
            label=request.label,
            began=request.began,
            at=time.monotonic(),
            pid=self.pid,
            code=code,
            has_retry_after=has_retry_after,
            detail=detail,
        )
        self.state.faults.append(found)

    def record_rejection(self, request: LoadRequest, answer: Answer) -> None:
        temporary = answer.status == 429 or answer.status >= 500
        code = str(answer.error().get("code"))
        if code == "server_restarted":  # the end of the response itself
            self.record_fault(request, "failed", code)
            request.given_up = True
            return
        detail = f"{answer.status} {answer.body[:300].decode(errors='replace')}"
        self.record_fault(request, "refused" if temporary else "wrong", code, answer.has_retry_after, detail)
        request.given_up = not temporary


async def request_json(caller: Caller, request: LoadRequest) -> None:
    """Request JSON, or background work that is then polled."""
    for _ in attempts(caller, request):
        async with record_disconnects(caller, request):
            reply = await caller.post(request.run.build_body(**request.fields), key=request.key)
            if reply.status != 200:
                caller.record_rejection(request, reply)
                await wait_before_retry(reply.retry_after)
                continue
            response = reply.json()
            request.run.id = response["id"]
            request.run.record_end(reply.body, response)
            request.note_id()
            break
    if request.run.kind == "background" and request.run.id:
        await _poll_until_end(caller, request)


async def _poll_until_end(caller: Caller, request: LoadRequest) -> None:
    run = request.run
    for _ in attempts(caller, request):
        async with record_disconnects(caller, request):
            reply = await caller.get(f"/v1/responses/{run.id}")
            if reply.status != 200:
                caller.record_rejection(request, reply)
                await wait_before_retry(reply.retry_after)
                continue
            run.record_end(reply.body, reply.json())
            if run.terminal_body is not None:
                note_end(caller, request, reply.json())
                return
            await asyncio.sleep(_POLL_SECONDS)


async def request_stream(caller: Caller, request: LoadRequest) -> None:
    """Request a stream; after an interruption resume it, if possible, with GET after the last received event."""
    run = request.run
    for _ in attempts(caller, request):
        if not run.frames:
            opening = caller.open("POST", "/v1/responses", request.run.build_body(**request.fields), request.key)
        else:
            is_resumed = run.kind == "background stream"  # another server may have different foreground events, or none
            after = f"&starting_after={len(run.frames) - 1}" if is_resumed else ""
            opening = caller.open("GET", f"/v1/responses/{run.id}?stream=true{after}")
        async with record_disconnects(caller, request), asyncio.timeout(caller.seconds), opening as opened:
            if not opened.is_event_stream:
                reply = Answer(opened.status, await opened.read_body(), opened.retry_after)
                caller.record_rejection(request, reply)
                await wait_before_retry(reply.retry_after)
                continue
            await _read_to_end(caller, request, opened)
        if run.stream_complete or (run.frames and run.kind != "background stream"):
            return


async def _read_to_end(caller: Caller, request: LoadRequest, opened: Stream) -> None:
    """Read a stream to its end, if it has one. An `error` event that the server sends on interruption is not part of
    the response.
    """
    run, before = request.run, list(request.run.frames)
    try:
        await opened.read()
    except DISCONNECT_ERRORS:
        caller.record_fault(request, "cut off" if opened.frames or before else "hung up")
    finally:
        frames = list(opened.frames)
        if frames and parse_event(frames[-1])["type"] == "error":
            broken = parse_event(frames.pop())
            caller.record_fault(request, "broken off", str(broken.get("code")), broken.get("retry_after") is not None)
        run.frames = before + frames
        if run.frames and not run.id:
            run.id = parse_event(run.frames[0])["response"]["id"]
        request.note_id()
        last = parse_event(run.frames[-1]) if run.frames else {}
        if last.get("type") in TERMINAL:
            run.stream_complete, run.terminal_at = opened.done, time.monotonic()
            note_end(caller, request, last["response"])


def note_end(caller: Caller, request: LoadRequest, response: dict[str, Any]) -> None:
    request.completed = response["status"] == "completed"
    if not request.completed:
        caller.record_fault(request, "failed", (response["error"] or {}).get("code") or response["status"])


def attempts(caller: Caller, request: LoadRequest) -> Iterator[None]:
    """Yield once per attempt until the request is given up."""
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while not request.given_up:
        if time.monotonic() > deadline:
            caller.record_fault(
                request, "silent", detail=f"no answer after {GIVE_UP_SECONDS:.0f} s and {request.attempts} attempts"
            )
            request.given_up = True
            return
        request.attempts += 1
        yield


@asynccontextmanager
async def record_disconnects(caller: Caller, request: LoadRequest) -> AsyncIterator[None]:
    """Record the process that handled an attempt, and a disconnect or timeout as a fault."""
    try:
        yield
    except DISCONNECT_ERRORS:
        caller.record_fault(request, "hung up")
        await asyncio.sleep(_RETRY_SECONDS)
    except TimeoutError:
        caller.record_fault(request, "silent")
    finally:
        request.pids.add(caller.pid)


async def wait_before_retry(seconds: float | None) -> None:
    """Wait for a random part of the Retry-After, so that the clients do not return at the same time."""
    await asyncio.sleep(_RETRY_SECONDS if seconds is None else seconds * random.uniform(0.3, 1.0))


async def run_json_client(state: LoadState) -> None:
    """Every other request has no key: it cannot be repeated safely, and each attempt may create a new response."""
    caller, number = Caller(state), 0
    while not state.stopping:
        number += 1
        await request_json(caller, register(state, new_request("json", "foreground JSON", keyed=number % 2 == 0)))


async def run_stream_client(state: LoadState) -> None:
    caller, number = Caller(state), 0
    while not state.stopping:
        number += 1
        await request_stream(caller, register(state, new_request("stream", "foreground stream", keyed=number % 2 == 0)))


async def run_background_client(state: LoadState) -> None:
    caller = Caller(state)
    while not state.stopping:
        await request_json(caller, register(state, new_request("background", "background")))


async def run_background_stream_client(state: LoadState) -> None:
    caller = Caller(state)
    while not state.stopping:
        await request_stream(caller, register(state, new_request("background stream", "background stream")))


async def run_conversation_client(state: LoadState) -> None:
    """Run conversations with several turns, alternately as JSON and as a stream."""
    caller = Caller(state)
    while not state.stopping:
        conversation = await _create_conversation(caller, state)
        for number in range(_TURNS):
            if state.stopping or not conversation:
                break
            kind: RunKind = "foreground stream" if number % 2 else "foreground JSON"
            request = register(state, new_request("conversation", kind, conversation=conversation))
            state.conversations[conversation].append(request.run)
            await (request_stream if number % 2 else request_json)(caller, request)


async def _create_conversation(caller: Caller, state: LoadState) -> str:
    """Create a conversation and return its id."""
    request, conversation = new_request("new conversation", "foreground JSON", keyed=False), ""
    for _ in attempts(caller, request):
        async with record_disconnects(caller, request):
            reply = await caller.post({}, "/v1/conversations")
            if reply.status == 200:
                conversation = str(reply.json()["id"])
                state.conversations[conversation] = []
                break
            caller.record_rejection(request, reply)
            await wait_before_retry(reply.retry_after)
    return conversation


def register(state: LoadState, request: LoadRequest) -> LoadRequest:
    state.requests.append(request)
    return request
