"""Stored responses of every kind, replayed after every sequence number and after invalid values.

The result must be the exact remainder of the events that the first client received, or a 400, and every stream must
end. This holds on the server that created the responses, on its successor, and on a second server that runs at the same
time.
"""

import asyncio
from pathlib import Path
from typing import Any

from drills.harness.client import Client, Stream
from drills.harness.findings import Findings
from drills.harness.journal import JournalAudit, new_nonce
from drills.harness.oracle import parse_event, terminal_response
from drills.harness.process import Process, open_servers
from drills.harness.storage_locations import StorageKind, StorageLocation, open_storage

AT_ONCE = 4
_SCRIPT = Path(__file__).with_name("replays.toml")
_CONFIG = {"fake_script": str(_SCRIPT), "lease_seconds": 5.0, "keep_streams": 0.0, "log_level": "error"}

_TOOL = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
_TOOLS = {"tools": [_TOOL]}
_LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
_REQUESTS: dict[str, dict[str, Any]] = {
    "says it": {},
    "thinks first": {},
    "thinks first and sums up": {"reasoning": {"effort": "low", "summary": "auto"}},
    "refuses": {},
    "says and refuses": {},
    "calls a tool": _TOOLS,
    "calls two tools": _TOOLS,
    "talks between calls": _TOOLS,
    "is cut short": {},
    "is cut in a call": _TOOLS,
    "is filtered": {},
    "dies at once": {},
    "dies in the middle": {},
    "has no room": {},
    "has a defect": {},
    "says nothing": {},
    "forges an event": {},
    "comes in bursts": {},
    "answers by itself": {},
    "answers with logprobs": _LOGPROBS,
    "answers up to a bound": {"max_output_tokens": 16},
    "answers with metadata": {"metadata": {"a": "b"}, "instructions": "Be brief.", "temperature": 0.5},
}
_CANCELLED = ("falls silent", "is silent")
_INVALID_STARTS = ("-100", "x", "1e400", "", "1.5", "0x1", "9" * 400)
_OUT_OF_RANGE_STARTS = (str(2**63), str(2**64), "-1")


class RecordedResponse:
    """A response with all events that its first client received."""

    def __init__(self, response_id: str, frames: list[bytes]) -> None:
        self.id = response_id
        self.frames = frames


async def replays(kind: StorageKind | StorageLocation, responses: int, findings: Findings) -> None:
    with open_storage(kind) as storage, open_servers(storage, _CONFIG, mark_answers=False) as processes:
        process = await processes.start()
        recorded = await _create_responses(process, responses, JournalAudit(storage.journal))
        await _check_all(process.client, recorded, findings)
        if kind != "sqlite":
            other = await processes.start()
            await _check_all(other.client, recorded, findings)
            await other.stop()
        process.kill()
        after = await processes.start()
        await _check_all(after.client, recorded, findings)
        await after.stop()


async def _create_responses(process: Process, responses: int, audit: JournalAudit) -> list[RecordedResponse]:
    """Create the requested number of responses of every kind in turn, in the foreground and in the background."""
    recorded: list[RecordedResponse] = []
    modes = [{"background": True}, {}]
    while len(recorded) < responses:
        for name, options in _REQUESTS.items():
            mode = modes[len(recorded) // len(_REQUESTS) % 2]
            recorded.append(_record(await process.client.stream(_body(name, {**options, **mode}))))
        recorded += [await _create_cancelled(process.client, name) for name in _CANCELLED]
        recorded.append(await _create_abandoned(process, audit))
    return recorded[:responses]


def _body(name: str, options: dict[str, Any]) -> dict[str, Any]:
    return {"model": "fake", "input": f"{new_nonce()} The model {name}", "stream": True, **options}


def _record(stream: Stream) -> RecordedResponse:
    terminal_response(stream.frames)
    return RecordedResponse(parse_event(stream.frames[0])["response"]["id"], stream.frames)


async def _create_cancelled(client: Client, name: str) -> RecordedResponse:
    """Create a response that is cancelled after it has sent its output."""
    event_count = 11 if name == "falls silent" else 3
    async with asyncio.timeout(30), client.open("POST", "/v1/responses", _body(name, {"background": True})) as stream:
        await stream.read(max_frames=event_count)
        response_id = parse_event(stream.frames[0])["response"]["id"]
        await client.post(None, f"/v1/responses/{response_id}/cancel")
        await stream.read()
        return _record(stream)


async def _create_abandoned(process: Process, audit: JournalAudit) -> RecordedResponse:
    """Create a foreground stream whose client disconnects. Its end was not sent to any client, so its first replay is
    the reference.
    """
    body = _body("falls silent", {})
    nonce = body["input"].split()[0]
    async with asyncio.timeout(30):
        async with process.client.open("POST", "/v1/responses", body) as stream:
            await stream.read(max_frames=9)
            response_id = parse_event(stream.frames[0])["response"]["id"]
        while nonce not in audit.ended:
            await asyncio.sleep(0.01)
            audit.check_new_lines()
        replay = await process.client.replay(response_id)
    assert replay.frames[:9] == stream.frames[:9], "the replay does not begin with the received events"
    return _record(replay)


async def _check_all(client: Client, recorded: list[RecordedResponse], findings: Findings) -> None:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(each: RecordedResponse) -> None:
        async with slots:
            await _check_one(client, each, findings)

    async with asyncio.TaskGroup() as clients:
        for each in recorded:
            clients.create_task(one(each))


async def _check_one(client: Client, recorded: RecordedResponse, findings: Findings) -> None:
    """Replay after every sequence number, after numbers beyond the last, from the beginning, and after invalid
    values.
    """
    last = len(recorded.frames) - 1
    starts: list[int | None] = [None, *range(last + 1), last + 1, last + 1000]
    for start in starts:
        stream = await client.replay(recorded.id, start)
        findings.add_trials()
        expected = recorded.frames[0 if start is None else start + 1 :]
        if stream.status != 200 or stream.frames != expected:
            findings.add_violation(
                f"{recorded.id} from {start}: {stream.status}, {_describe_difference(stream.frames, expected)}"
            )
    for text in _INVALID_STARTS:
        stream = await client.replay(recorded.id, text)
        findings.add_trials()
        if stream.status != 400:
            findings.add_violation(f"{recorded.id} from {text[:20]!r}: {stream.status}")
    await _check_out_of_range(client, recorded, findings)
    await _check_get(client, recorded, findings)


async def _check_out_of_range(client: Client, recorded: RecordedResponse, findings: Findings) -> None:
    """Numbers that belong to no event are rejected or return an exact remainder."""
    for text in _OUT_OF_RANGE_STARTS:
        stream = await client.replay(recorded.id, text)
        findings.add_trials()
        remainder = recorded.frames if text == "-1" else []
        if stream.status != 400 and stream.frames != remainder:
            findings.add_violation(
                f"{recorded.id} from {text}: {stream.status}, {_describe_difference(stream.frames, remainder)}"
            )


async def _check_get(client: Client, recorded: RecordedResponse, findings: Findings) -> None:
    answer = await client.get(f"/v1/responses/{recorded.id}")
    findings.add_trials()
    if answer.status != 200 or answer.json() != terminal_response(recorded.frames):
        findings.add_violation(f"{recorded.id}: GET differs from the end of its stream: {answer.body[:300]!r}")


def _describe_difference(frames: list[bytes], expected: list[bytes]) -> str:
    for number, (got, due) in enumerate(zip(frames, expected, strict=False)):
        if got != due:
            return f"{number} events later it is {got[:200]!r} instead of {due[:200]!r}"
    return f"{len(frames)} events instead of {len(expected)}"
