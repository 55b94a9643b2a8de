"""Drill `bombs-failures`: thousands of requests that fail at every stage leave no open file, no task and no memory
behind.
"""

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
from drills.bombs.bomb import Bomb, create_bomb, get_bomb, post_bomb, raw_bomb
from drills.bombs.forms import form, post
from drills.bombs.http import BROKEN
from drills.bombs.images import IMAGES, image_fields
from drills.bombs.schemas import BAD_SCHEMAS, UNANSWERABLE_SCHEMAS, as_format
from drills.bombs.sockets import FRAMES
from drills.bombs.throw import throw
from drills.harness.findings import Figure, Findings
from drills.harness.memory import count_open_files, count_threads
from drills.harness.process import Process, open_servers
from drills.harness.storage_locations import open_storage
from tests.clients.websocket.raw_socket import CREATE, encode_text_frame
from tests.clients.websocket.raw_socket import build_upgrade_request as upgrade
from tests.faults.raw_client import build_body, build_request
from tests.support.media_files import encode_data_url

MIB = 1024 * 1024
TOLERANCE = 0.02  # permitted relative growth
_CONCURRENCY = 16
_SETTLE_SECONDS = 15.0
_POLL_SECONDS = 0.25
_STABLE_SAMPLES = 8  # equal samples in a row that count as stable
_CONFIG = {"log_level": "error", "max_websocket_connections": 1000, "stall_seconds": 5.0, "keep_streams": 0.0}
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

FailingRequest = Callable[[int], Awaitable[None]]


class FailureCounts(Struct, frozen=True):
    warm_up: int  # fills the caches
    measured: int


FULL, QUICK = FailureCounts(3_000, 10_000), FailureCounts(800, 1_500)


def _send_bomb(bomb: Bomb) -> FailingRequest:
    async def fail(port: int) -> None:
        await throw(port, bomb)

    return fail


def _disconnect(start: bytes, wait_for_output: bool, websocket: bool = False) -> FailingRequest:
    """Return a client that disconnects before it has sent all of its request, or while it receives the answer."""

    async def fail(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(10):
                if websocket:
                    writer.write(upgrade("/v1/responses"))
                    await reader.readuntil(b"\r\n\r\n")
                writer.write(start)
                await (reader.readuntil(b"well") if wait_for_output else writer.drain())
        writer.transport.abort()

    return fail


def _failing_bomb(fields: dict[str, object]) -> Bomb:
    return create_bomb("fails", {"store": False, **fields}, answers=(200, 400, 424, 500))


STAGES: dict[str, FailingRequest] = {
    "the head": _send_bomb(raw_bomb("", BROKEN["space before colon"])),
    "the host": _send_bomb(raw_bomb("", build_request(build_body(), headers=[("Host", "evil.com")]))),
    "the path": _send_bomb(get_bomb("", "/v1/nowhere")),
    "the type": _send_bomb(raw_bomb("", build_request(build_body(), headers=[("Content-Type", "text/plain")]))),
    "the size": _send_bomb(raw_bomb("", build_request(b"", headers=[("Content-Length", "99999999")]))),
    "the JSON": _send_bomb(post_bomb("", NOT_JSON["cut"])),
    "a number": _send_bomb(_failing_bomb({"temperature": 7})),
    "a schema": _send_bomb(_failing_bomb(as_format(BAD_SCHEMAS["unknown type"]))),
    "a form": _send_bomb(raw_bomb("", post(form(end="")))),
    "an id": _send_bomb(get_bomb("", f"/v1/responses/resp_{'0' * 32}")),
    "what came before": _send_bomb(_failing_bomb({"previous_response_id": f"resp_{'0' * 32}"})),
    "a picture": _send_bomb(_failing_bomb(image_fields(encode_data_url(IMAGES["half a JPEG"]())))),
    "a URL": _send_bomb(_failing_bomb(image_fields("http://127.0.0.1:1/x.png"))),
    "a tool's server": _send_bomb(_failing_bomb({"tools": [_MCP]})),
    "a schema that has no answer": _send_bomb(_failing_bomb(as_format(UNANSWERABLE_SCHEMAS["impossible"]))),
    "the engine": _send_bomb(_failing_bomb({"input": "fail at once"})),
    "the engine, in a stream": _send_bomb(_failing_bomb({"input": "fail later", "stream": True})),
    "the engine, of a chat": _send_bomb(post_bomb("", _CHAT, "/v1/chat/completions")),
    "the engine, of messages": _send_bomb(post_bomb("", _CHAT, "/v1/messages")),
    "frames": _send_bomb(raw_bomb("", FRAMES["not masked"][0], channel="socket")),
    "a message": _send_bomb(raw_bomb("", encode_text_frame({**_CREATE, "temperature": 7}), channel="socket")),
    "the engine, of a message": _send_bomb(
        raw_bomb("", encode_text_frame({**_CREATE, "input": "fail later"}), channel="socket")
    ),
    "left in the head": _disconnect(build_request(build_body())[:40], wait_for_output=False),
    "left in the body": _disconnect(build_request(build_body())[:-3], wait_for_output=False),
    "left in a stream": _disconnect(
        build_request(build_body(input="be silent", stream=True, store=False)), wait_for_output=True
    ),
    "left while it waited": _disconnect(
        build_request(build_body(input="be silent", store=False)), wait_for_output=False
    ),
    "left on a WebSocket": _disconnect(
        encode_text_frame({**_CREATE, "input": "be silent"}), wait_for_output=True, websocket=True
    ),
}


# The server caches recently stored data up to a limit that these do not reach, so memory is not compared.
STORED_STAGES: dict[str, FailingRequest] = {
    "the engine, what is kept": _send_bomb(_failing_bomb({"input": "fail later", "store": True})),
    "the engine, in the background": _send_bomb(
        _failing_bomb({"input": "fail at once", "background": True, "store": True})
    ),
}


class ResourceUsage(Struct, frozen=True):
    files: int
    threads: int
    tasks: int
    rss: int  # bytes

    def find_growth(self, before: "ResourceUsage") -> list[str]:
        """Describe each resource that has grown."""
        counts = (
            ("files", self.files, before.files),
            ("tasks", self.tasks, before.tasks),
            ("RSS", self.rss, before.rss),
        )
        return [f"{name} {now:,}, previously {then:,}" for name, now, then in counts if now > then * (1 + TOLERANCE)]


async def failures(counts: FailureCounts, findings: Findings) -> None:
    with open_storage("sqlite") as storage:
        script = storage.folder / "script.toml"
        script.write_text(_SCRIPT)
        with open_servers(storage, {**_CONFIG, "fake_script": str(script)}, mark_answers=False) as processes:
            process = await processes.start()
            await _run_stages(process.client.port, {**STAGES, **STORED_STAGES}, counts.warm_up)
            before = await _wait_until_stable(process, None)
            await _run_stages(process.client.port, STAGES, counts.measured)
            after = await _wait_until_stable(process, before)
            await _run_stages(process.client.port, STORED_STAGES, counts.measured // 10)
            stored = await _wait_until_stable(process, replace(before, rss=sys.maxsize))
            await process.stop()
    findings.add_trials(counts.warm_up + counts.measured + counts.measured // 10)
    growth = [*after.find_growth(before), *stored.find_growth(replace(before, rss=sys.maxsize))]
    findings.add_violations(f"resources grew after failures: {each}" for each in growth)
    findings.add_violations(f"the server wrote a traceback:\n{text}" for text in processes.tracebacks)
    _report(before, after, findings)


def _report(before: ResourceUsage, after: ResourceUsage, findings: Findings) -> None:
    findings.print_line(f"before {before}, after {after}")
    findings.add_figure(Figure("stages", len(STAGES) + len(STORED_STAGES)))
    findings.add_figure(Figure("RSS MiB", before.rss / MIB))
    findings.add_figure(Figure("RSS %", (after.rss / before.rss - 1) * 100))
    findings.add_figure(Figure("files more", after.files - before.files))
    findings.add_figure(Figure("tasks more", after.tasks - before.tasks))


async def _run_stages(port: int, stages: dict[str, FailingRequest], count: int) -> None:
    kinds = itertools.cycle(stages.values())
    pending = iter([next(kinds) for _ in range(count)])

    async def work() -> None:
        for each in pending:
            await each(port)

    async with asyncio.TaskGroup() as group:
        for _ in range(_CONCURRENCY):
            group.create_task(work())


async def _wait_until_stable(process: Process, before: ResourceUsage | None) -> ResourceUsage:
    """Return the resource usage once it is no more than before, or does not change any more."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    samples: list[ResourceUsage] = []
    while True:
        await asyncio.sleep(_POLL_SECONDS)
        pid = process.pid
        samples.append(
            ResourceUsage(count_open_files(pid), count_threads(pid), await process.count_tasks(), rss_bytes(pid))
        )
        is_stable = (
            len(samples) >= _STABLE_SAMPLES
            and len({(sample.files, sample.tasks) for sample in samples[-_STABLE_SAMPLES:]}) == 1
        )
        has_recovered = before is not None and not samples[-1].find_growth(before)
        if is_stable or has_recovered or time.monotonic() > deadline:
            return samples[-1]


def folder_size(folder: Path) -> int:
    """Return the bytes of all files in the folder, except the drill's own journal."""
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file() and each.name != "journal")
