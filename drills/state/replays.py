"""Stored responses of every kind, replayed from every number, and from every nonsense that could be one: the exact rest
of what the first client got, or a 400; and the stream always ends. So on the server that made them, on the one after
it, and on a second one beside it."""

import asyncio
from pathlib import Path
from typing import Any

from drills.harness.client import Client, Stream
from drills.harness.findings import Findings
from drills.harness.journal import Audit, new_nonce
from drills.harness.oracle import event, whole
from drills.harness.process import Process, servers
from drills.harness.storage_locations import Kind, Place, place

AT_ONCE = 4
_SCRIPT = Path(__file__).with_name("replays.toml")
_CONFIG = {"fake_script": str(_SCRIPT), "lease_seconds": 5.0, "log_level": "error"}

_TOOL = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
_TOOLS = {"tools": [_TOOL]}
_LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
_WISHES: dict[str, dict[str, Any]] = {
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
_WRONG = ("-100", "x", "1e400", "", "1.5", "0x1", "9" * 400)
_EITHER = (str(2**63), str(2**64), "-1")


class Told:
    """A response and all that its first client was told."""

    def __init__(self, response_id: str, frames: list[bytes]) -> None:
        self.id = response_id
        self.frames = frames


async def replays(kind: Kind | Place, responses: int, findings: Findings) -> None:
    with place(kind) as where, servers(where, _CONFIG, marks=False) as processes:
        process = await processes.start()
        told = await _tell(process, responses, Audit(where.journal))
        await _check(process.client, told, findings)
        if kind != "sqlite":
            other = await processes.start()
            await _check(other.client, told, findings)
            await other.stop()
        process.kill()
        after = await processes.start()
        await _check(after.client, told, findings)
        await after.stop()


async def _tell(process: Process, responses: int, audit: Audit) -> list[Told]:
    """As many as wished, in turn of every kind, in the foreground and in the background."""
    told: list[Told] = []
    ways = [{"background": True}, {}]
    while len(told) < responses:
        for name, wishes in _WISHES.items():
            way = ways[len(told) // len(_WISHES) % 2]
            told.append(_told(await process.client.stream(_body(name, {**wishes, **way}))))
        told += [await _cancelled(process.client, name) for name in _CANCELLED]
        told.append(await _abandoned(process, audit))
    return told[:responses]


def _body(name: str, wishes: dict[str, Any]) -> dict[str, Any]:
    return {"model": "fake", "input": f"{new_nonce()} The model {name}", "stream": True, **wishes}


def _told(stream: Stream) -> Told:
    whole(stream.frames)
    return Told(event(stream.frames[0])["response"]["id"], stream.frames)


async def _cancelled(client: Client, name: str) -> Told:
    """Cancelled once it has said what it says."""
    enough = 11 if name == "falls silent" else 3
    async with asyncio.timeout(30), client.open("POST", "/v1/responses", _body(name, {"background": True})) as stream:
        await stream.read(most=enough)
        response_id = event(stream.frames[0])["response"]["id"]
        await client.post(None, f"/v1/responses/{response_id}/cancel")
        await stream.read()
        return _told(stream)


async def _abandoned(process: Process, audit: Audit) -> Told:
    """A foreground stream whose client left: nobody was told its end, so its first replay says how it must be."""
    body = _body("falls silent", {})
    nonce = body["input"].split()[0]
    async with asyncio.timeout(30):
        async with process.client.open("POST", "/v1/responses", body) as stream:
            await stream.read(most=9)
            response_id = event(stream.frames[0])["response"]["id"]
        while nonce not in audit.ended:
            await asyncio.sleep(0.01)
            audit.news()
        replay = await process.client.replay(response_id)
    assert replay.frames[:9] == stream.frames[:9], "a replay begins otherwise than what was told"
    return _told(replay)


async def _check(client: Client, told: list[Told], findings: Findings) -> None:
    places = asyncio.Semaphore(AT_ONCE)

    async def one(each: Told) -> None:
        async with places:
            await _check_one(client, each, findings)

    async with asyncio.TaskGroup() as clients:
        for each in told:
            clients.create_task(one(each))


async def _check_one(client: Client, told: Told, findings: Findings) -> None:
    """Every number there is, the first that is none, and none at all."""
    last = len(told.frames) - 1
    starts: list[int | None] = [None, *range(last + 1), last + 1, last + 1000]
    for start in starts:
        stream = await client.replay(told.id, start)
        findings.tried()
        expected = told.frames[0 if start is None else start + 1 :]
        if stream.status != 200 or stream.frames != expected:
            findings.violated(f"{told.id} from {start}: {stream.status}, {_wrong(stream.frames, expected)}")
    for text in _WRONG:
        stream = await client.replay(told.id, text)
        findings.tried()
        if stream.status != 400:
            findings.violated(f"{told.id} from {text[:20]!r}: {stream.status}")
    await _check_either(client, told, findings)
    await _check_get(client, told, findings)


async def _check_either(client: Client, told: Told, findings: Findings) -> None:
    """Numbers, but of no event: refused, or an exact rest."""
    for text in _EITHER:
        stream = await client.replay(told.id, text)
        findings.tried()
        rest = told.frames if text == "-1" else []
        if stream.status != 400 and stream.frames != rest:
            findings.violated(f"{told.id} from {text}: {stream.status}, {_wrong(stream.frames, rest)}")


async def _check_get(client: Client, told: Told, findings: Findings) -> None:
    answer = await client.get(f"/v1/responses/{told.id}")
    findings.tried()
    if answer.status != 200 or answer.json() != whole(told.frames):
        findings.violated(f"{told.id}: GET is not what its stream said: {answer.body[:300]!r}")


def _wrong(frames: list[bytes], expected: list[bytes]) -> str:
    for number, (got, due) in enumerate(zip(frames, expected, strict=False)):
        if got != due:
            return f"{number} places on it is {got[:200]!r} and not {due[:200]!r}"
    return f"{len(frames)} events and not {len(expected)}"
