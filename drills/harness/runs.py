"""Responses under drill as their clients observed them, and their verification afterwards.

Whatever happened to its server, a response that was acknowledged to a client exists, ends once and does not change
after that. Its replay is a valid stream, and the events that a client of a background stream received are its
beginning.
"""

import asyncio
import time
from typing import Any, Literal

from msgspec import Struct, field

from drills.harness.client import DISCONNECT_ERRORS, Answer, Client, Stream
from drills.harness.journal import new_nonce
from drills.harness.oracle import ENDED, InvalidStream, Json, output_text, parse_event, terminal_response

RunKind = Literal["background", "background stream", "foreground stream", "foreground JSON", "socket turn"]
STUCK_SECONDS = 60.0
_POLL_SECONDS = 0.1


class Run(Struct, kw_only=True):
    """One response. `terminal_body` is the body of the first GET that showed its end, or the JSON answer of the
    POST.
    """

    kind: RunKind
    prompt: str
    nonce: str = field(default_factory=new_nonce)
    id: str = ""
    frames: list[bytes] = []
    stream_complete: bool = False  # the stream was received up to [DONE]
    terminal_body: bytes | None = None
    terminal_at: float = 0.0
    cancelled: bool = False  # a client requested it
    orphaned: bool = False  # its server lost the lease: the end that it sent may differ in detail from the stored end
    ended: Json | None = None  # final state, as returned by GET
    timed_out: bool = False  # its client received no answer in time
    rejection: Answer | None = None  # error answer instead of a response

    @property
    def input(self) -> str:
        return f"{self.nonce} {self.prompt}"

    def build_body(self, **fields: Any) -> dict[str, Any]:
        modes = {"background": "background" in self.kind, "stream": "stream" in self.kind}
        return {"model": "fake", "input": self.input, **modes, **fields}

    def record_end(self, body: bytes, response: Json) -> None:
        """Record the first observed end."""
        if self.terminal_body is None and response["status"] in ENDED:
            self.terminal_body, self.terminal_at = body, time.monotonic()


async def execute(client: Client, run: Run, **fields: Any) -> None:
    """Send the request and read the answer until the response has ended or the server is gone."""
    try:
        async with asyncio.timeout(STUCK_SECONDS):
            if "stream" in run.kind:
                await _read_stream(client, run, run.build_body(**fields))
            else:
                _record_answer(run, await client.post(run.build_body(**fields)))
                if run.kind == "background":
                    await _poll_until_end(client, run)
    except DISCONNECT_ERRORS:
        pass
    except TimeoutError:
        run.timed_out = True


async def _read_stream(client: Client, run: Run, body: Json) -> None:
    async with client.open("POST", "/v1/responses", body) as stream:
        if stream.is_event_stream:
            try:
                await stream.read(max_frames=1)
                record_stream(run, stream)
                await stream.read()
            finally:
                record_stream(run, stream)
        else:
            run.rejection = Answer(stream.status, await stream.read_body(), stream.retry_after)


def record_stream(run: Run, stream: Stream) -> None:
    """Record the received part of a stream, also of one that was cut off.

    A server that shuts down sends an `error` event that is not part of the log: the response may continue on another
    server.
    """
    run.frames, run.stream_complete = list(stream.frames), stream.done
    if run.stream_complete and run.frames and parse_event(run.frames[-1])["type"] == "error":
        run.frames.pop()
        run.stream_complete = False
    if run.frames and not run.id:
        run.id = parse_event(run.frames[0])["response"]["id"]
    if run.stream_complete:
        run.terminal_at = time.monotonic()


def _record_answer(run: Run, answer: Answer) -> None:
    if answer.status == 200:
        response = answer.json()
        run.id = response["id"]
        run.record_end(answer.body, response)
    else:
        run.rejection = answer


async def _poll_until_end(client: Client, run: Run) -> None:
    while run.id and run.terminal_body is None:
        await asyncio.sleep(_POLL_SECONDS)
        answer = await client.get(f"/v1/responses/{run.id}")
        if answer.status == 200:
            run.record_end(answer.body, answer.json())


async def wait_for_ends(client: Client, runs: list[Run], seconds: float = STUCK_SECONDS) -> list[str]:
    """Wait for the end of all responses that were acknowledged to a client; returns violations."""
    found = await asyncio.gather(*(_wait_for_end(client, run, seconds) for run in runs if run.id))
    hung = [f"the client of {run.kind} {run.id} received no answer in time" for run in runs if run.timed_out]
    return [*hung, *(sentence for sentence in found if sentence)]


async def _wait_for_end(client: Client, run: Run, seconds: float) -> str:
    deadline = time.monotonic() + seconds
    while True:
        try:
            answer = await client.get(f"/v1/responses/{run.id}")
        except (TimeoutError, *DISCONNECT_ERRORS) as error:
            return f"{run.kind} {run.id} cannot be retrieved: {error!r}"
        if answer.status != 200:
            return f"{run.kind} {run.id} was acknowledged and is lost: {answer.status} {answer.body[:200]!r}"
        response = answer.json()
        if response["status"] in ENDED:
            return _compare_end(run, answer.body, response)
        if time.monotonic() > deadline:
            return f"{run.kind} {run.id} is stuck: {response['status']} {seconds:.0f} s after the restart"
        await asyncio.sleep(_POLL_SECONDS)


def _compare_end(run: Run, body: bytes, response: Json) -> str:
    run.ended = response
    if run.terminal_body is not None and run.terminal_body != body:
        return f"{run.kind} {run.id} has changed after its end: {_describe_difference(run.terminal_body, body)}"
    run.record_end(body, response)
    return ""


async def verify_run(client: Client, run: Run) -> list[str]:
    """Verify a response that has ended; returns violations."""
    return await verify_replay(client, run) or _verify_text(run)


async def verify_replay(client: Client, run: Run) -> list[str]:
    """Verify the replay of a response that has ended; returns violations."""
    assert run.ended is not None
    stream = await client.replay(run.id)
    try:
        if stream.status != 200 or terminal_response(stream.frames) != run.ended:
            return [f"{run.kind} {run.id}: its replay differs from GET"]
    except InvalidStream as wrong:
        return [f"{run.kind} {run.id}: its replay is invalid: {wrong}"]
    return _verify_received(run, stream.frames)


def _verify_received(run: Run, frames: list[bytes]) -> list[str]:
    """The received events must be the beginning of the replay, and all of it if the client received the end."""
    if run.orphaned and run.kind == "foreground stream":
        return _verify_same_status(run)
    if run.kind == "background stream" or run.stream_complete:
        expected = frames if run.stream_complete else frames[: len(run.frames)]
        if run.frames != expected:
            return [
                f"{run.kind} {run.id}: the received events differ from the replay: {_first_difference(run, frames)}"
            ]
    return []


def _verify_same_status(run: Run) -> list[str]:
    """For a stream that only its lost server could send: its end must have the same status and error code."""
    assert run.ended is not None
    received = terminal_response(run.frames) if run.stream_complete else run.ended
    one, other = ((end["status"], (end["error"] or {}).get("code")) for end in (received, run.ended))
    return [] if one == other else [f"{run.kind} {run.id}: its client received {one}, but the stored end is {other}"]


def _verify_text(run: Run) -> list[str]:
    """The text must come from one attempt: it begins and ends with the same marker."""
    assert run.ended is not None
    status, text = run.ended["status"], output_text(run.ended)
    marker = text.partition(" ")[0]
    expected = f"{marker} You said: {run.input} {marker}"
    if text != expected and (status == "completed" or not expected.startswith(text)):
        return [f"{run.kind} {run.id} is {status} with the text {text!r}"]
    return []


def _first_difference(run: Run, frames: list[bytes]) -> str:
    for number, (got, expected) in enumerate(zip(run.frames, frames, strict=False)):
        if got != expected:
            return f"event {number}: {_describe_difference(got, expected)}"
    return f"{len(run.frames)} were received, the replay has {len(frames)}"


def _describe_difference(one: bytes, other: bytes) -> str:
    at = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    start = max(0, at - 60)
    return f"{one[start : at + 100]!r} became {other[start : at + 100]!r}"
