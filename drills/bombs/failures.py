"""Requests that fail at every stage, thousands of them: what is left of them is nothing. No file stays open, no task
goes on, and no memory is kept."""

import asyncio
import itertools
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from bench.harness.process_meter import rss_bytes
from drills.bombs.bodies import NOT_JSON
from drills.bombs.bomb import Bomb, asked, given, got, posted
from drills.bombs.forms import form, sent
from drills.bombs.http import BROKEN
from drills.bombs.images import BOMBS, shown
from drills.bombs.schemas import BAD, UNANSWERABLE, as_format
from drills.bombs.sockets import FRAMES
from drills.bombs.throw import throw
from drills.harness.findings import Figure, Findings
from drills.harness.memory import open_files, threads
from drills.harness.process import Process, servers
from drills.harness.storage_locations import place
from tests.clients.websocket.raw_socket import CREATE, text
from tests.clients.websocket.raw_socket import request as upgrade
from tests.faults.raw_client import body, request
from tests.support.media_files import as_url

MIB = 1024 * 1024
SHARE = 0.02  # by which what is left may differ
_AT_ONCE = 16
_SETTLE_SECONDS = 15.0
_LOOK_SECONDS = 0.25
_ALIKE = 8  # looks
_CONFIG = {"log_level": "error", "max_websocket_connections": 1000, "stall_seconds": 5.0}
_SCRIPT = """
[[reply]]
when = { contains = "fail at once" }
steps = [{ error = { message = "no" } }]

[[reply]]
when = { contains = "fail later" }
steps = [{ say = "well " }, { error = { message = "no" } }]

[[reply]]
when = { contains = "be silent" }
steps = [{ say = "well " }, { silence = true }]
"""
_MCP = {"type": "mcp", "server_label": "m", "server_url": "http://127.0.0.1:1/mcp", "require_approval": "never"}
_CHAT = b'{"model":"fake","messages":[{"role":"user","content":"fail later"}],"max_tokens":9,"stream":true}'
_CREATE = {**CREATE, "store": False}

Failing = Callable[[int], Awaitable[None]]


class Times(Struct, frozen=True):
    before: int  # to begin with: what is kept once is kept
    after: int


FULL, QUICK = Times(3_000, 10_000), Times(800, 1_500)


def _refused(bomb: Bomb) -> Failing:
    async def fail(port: int) -> None:
        await throw(port, bomb)

    return fail


def _left(start: bytes, reads: bool, upgraded: bool = False) -> Failing:
    """A client that hangs up: before it has said all, or with an answer on its way."""

    async def fail(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(10):
                if upgraded:
                    writer.write(upgrade("/v1/responses"))
                    await reader.readuntil(b"\r\n\r\n")
                writer.write(start)
                await (reader.readuntil(b"well") if reads else writer.drain())
        writer.transport.abort()

    return fail


def _failed(fields: dict[str, object]) -> Bomb:
    return asked("fails", {"store": False, **fields}, answers=(200, 400, 424, 500))


STAGES: dict[str, Failing] = {
    "the head": _refused(given("", BROKEN["space before colon"])),
    "the host": _refused(given("", request(body(), headers=[("Host", "evil.com")]))),
    "the path": _refused(got("", "/v1/nowhere")),
    "the type": _refused(given("", request(body(), headers=[("Content-Type", "text/plain")]))),
    "the size": _refused(given("", request(b"", headers=[("Content-Length", "99999999")]))),
    "the JSON": _refused(posted("", NOT_JSON["cut"])),
    "a number": _refused(_failed({"temperature": 7})),
    "a schema": _refused(_failed(as_format(BAD["unknown type"]))),
    "a form": _refused(given("", sent(form(end="")))),
    "an id": _refused(got("", f"/v1/responses/resp_{'0' * 32}")),
    "what came before": _refused(_failed({"previous_response_id": f"resp_{'0' * 32}"})),
    "a picture": _refused(_failed(shown(as_url(BOMBS["half a JPEG"]())))),
    "a URL": _refused(_failed(shown("http://127.0.0.1:1/x.png"))),
    "a tool's server": _refused(_failed({"tools": [_MCP]})),
    "a schema that has no answer": _refused(_failed(as_format(UNANSWERABLE["impossible"]))),
    "the engine": _refused(_failed({"input": "fail at once"})),
    "the engine, in a stream": _refused(_failed({"input": "fail later", "stream": True})),
    "the engine, of a chat": _refused(posted("", _CHAT, "/v1/chat/completions")),
    "the engine, of messages": _refused(posted("", _CHAT, "/v1/messages")),
    "frames": _refused(given("", FRAMES["not masked"][0], way="socket")),
    "a message": _refused(given("", text({**_CREATE, "temperature": 7}), way="socket")),
    "the engine, of a message": _refused(given("", text({**_CREATE, "input": "fail later"}), way="socket")),
    "left in the head": _left(request(body())[:40], reads=False),
    "left in the body": _left(request(body())[:-3], reads=False),
    "left in a stream": _left(request(body(input="be silent", stream=True, store=False)), reads=True),
    "left while it waited": _left(request(body(input="be silent", store=False)), reads=False),
    "left on a WebSocket": _left(text({**_CREATE, "input": "be silent"}), reads=True, upgraded=True),
}


# A server remembers what it has kept lately, up to a bound that these do not reach: they say nothing of memory.
KEPT: dict[str, Failing] = {
    "the engine, what is kept": _refused(_failed({"input": "fail later", "store": True})),
    "the engine, in the background": _refused(_failed({"input": "fail at once", "background": True, "store": True})),
}


class Left(Struct, frozen=True):
    files: int
    threads: int
    tasks: int
    rss: int  # bytes

    def beyond(self, before: "Left") -> list[str]:
        """What is more than there was, by name."""
        counts = (
            ("files", self.files, before.files),
            ("tasks", self.tasks, before.tasks),
            ("RSS", self.rss, before.rss),
        )
        return [f"{name} {now:,} after {then:,}" for name, now, then in counts if now > then * (1 + SHARE)]


async def failures(times: Times, findings: Findings) -> None:
    with place("sqlite") as where:
        script = where.folder / "script.toml"
        script.write_text(_SCRIPT)
        with servers(where, {**_CONFIG, "fake_script": str(script)}, marks=False) as processes:
            process = await processes.start()
            await _fail(process.client.port, {**STAGES, **KEPT}, times.before)
            before = await _settled(process, None)
            await _fail(process.client.port, STAGES, times.after)
            after = await _settled(process, before)
            await _fail(process.client.port, KEPT, times.after // 10)
            kept = await _settled(process, replace(before, rss=sys.maxsize))
            await process.stop()
    findings.tried(times.before + times.after + times.after // 10)
    left = [*after.beyond(before), *kept.beyond(replace(before, rss=sys.maxsize))]
    findings.all_violated(f"failures left something: {each}" for each in left)
    findings.all_violated(f"the server wrote a traceback:\n{text}" for text in processes.tracebacks)
    _tell(before, after, findings)


def _tell(before: Left, after: Left, findings: Findings) -> None:
    findings.say(f"before {before}, after {after}")
    findings.figure(Figure("stages", len(STAGES) + len(KEPT)))
    findings.figure(Figure("RSS MiB", before.rss / MIB))
    findings.figure(Figure("RSS %", (after.rss / before.rss - 1) * 100, most=SHARE * 100))
    findings.figure(Figure("files more", after.files - before.files, most=0))
    findings.figure(Figure("tasks more", after.tasks - before.tasks, most=0))


async def _fail(port: int, stages: dict[str, Failing], count: int) -> None:
    kinds = itertools.cycle(stages.values())
    waiting = iter([next(kinds) for _ in range(count)])

    async def work() -> None:
        for each in waiting:
            await each(port)

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(work())


async def _settled(process: Process, before: Left | None) -> Left:
    """What is left when all have gone: when it is no more than it was, or does not change any more."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    looks: list[Left] = []
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        pid = process.pid
        looks.append(Left(open_files(pid), threads(pid), await process.tasks(), rss_bytes(pid)))
        still = len(looks) >= _ALIKE and len({(look.files, look.tasks) for look in looks[-_ALIKE:]}) == 1
        fewer = before is not None and not looks[-1].beyond(before)
        if still or fewer or time.monotonic() > deadline:
            return looks[-1]


def size_of(folder: Path) -> int:
    """Bytes of all files in it, but for what the drill itself writes."""
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file() and each.name != "journal")
