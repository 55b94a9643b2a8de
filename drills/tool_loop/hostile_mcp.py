"""Hostile MCP servers: each is listed and called as a response would do it, and a crowd calls a few at once.

Whatever they do, nobody waits beyond their deadline, no call is sent twice, nothing is sent to where a redirect leads,
no credential comes back, nobody gets what is another's, and no memory is kept.
"""

import asyncio
import json
import logging
import resource
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from antiphon.core.deltas import Delta
from antiphon.egress import Egress
from antiphon.errors import McpFailed
from antiphon.protocol.types.items import McpCall
from antiphon.protocol.types.tools import McpTool
from antiphon.tools.base import Use
from antiphon.tools.mcp.client import Mcp, McpSettings
from drills.engines.floods import rss
from drills.harness.findings import Figure, Findings
from drills.tool_loop.hostile_mcp_server import whole_server
from tests.egress.hosts import Host, hosting, saying
from tests.tools.mcp.hostile_behaviours import deeds

LIST_SECONDS, CALL_SECONDS, LONGEST_SECONDS = 2.0, 1.0, 3.0
MOST_OVERRUN = 1.0
MOST_GROWTH = 64.0  # MiB
AT_ONCE = 4
SERVERS, TENANTS = 4, 5  # of the crowd
SECRET = "canary-3f1c9a7e5b"
_SETTINGS = McpSettings(
    at_home=True, list_seconds=LIST_SECONDS, call_seconds=CALL_SECONDS, longest_seconds=LONGEST_SECONDS
)


async def mcp(calls: int, findings: Findings) -> None:
    heard = _Heard()
    logging.getLogger().addHandler(heard)
    async with hosting(saying(b"{}")) as canary, _process(f"http://127.0.0.1:{canary.port}") as port:
        await _Drill(port, findings).all_of(canary)
        await _crowd(port, calls, findings)
        await whole_server(port, findings)
    logging.getLogger().removeHandler(heard)
    findings.all_violated(f"a log has the secret: {line[:80]}" for line in heard.lines if SECRET in line)


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@asynccontextmanager
async def _process(canary: str) -> AsyncIterator[int]:
    """The servers are a process of their own, so that their doings cost us nothing but what arrives."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.tools.mcp.hostile_server", canary, stdin=pipe, stdout=pipe
    )
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()


class _Drill:
    def __init__(self, port: int, findings: Findings) -> None:
        self._port = port
        self._findings = findings
        self._overrun = 0.0
        self._answered = self._refused = 0

    async def all_of(self, canary: Host) -> None:
        await self._warm_up()
        memory, highest, names = rss(), _highest(), list(deeds())
        for begin in range(0, len(names), AT_ONCE):
            await asyncio.gather(*map(self._try, names[begin : begin + AT_ONCE]))
        counts = json.loads(await _counts(self._port))
        self._findings.all_violated(f"{what} was called {times} times" for what, times in counts.items() if times > 1)
        if canary.connects:
            self._findings.violated(f"a redirect or a hint was followed, {canary.connects} times")
        if left := [task for task in asyncio.all_tasks() if task.get_name().startswith("mcp ")]:
            self._findings.violated(f"{len(left)} tasks are left")
        self._findings.figure(Figure("servers", len(names), least=60))
        self._findings.figure(Figure("overrun s", self._overrun, most=MOST_OVERRUN))
        self._findings.figure(Figure("growth MiB", rss() - memory, most=MOST_GROWTH))
        self._findings.figure(Figure("peak MiB", _highest() - highest, most=MOST_GROWTH))
        self._findings.figure(Figure("completed", self._answered))
        self._findings.figure(Figure("failed", self._refused))

    async def _warm_up(self) -> None:
        """What is loaded and kept for good is there after this."""
        client = Mcp(_SETTINGS, Egress())
        await client.begin("t", [McpTool(server_label="s", server_url=f"http://127.0.0.1:{self._port}/good")]).list("s")
        await client.close()

    async def _try(self, name: str) -> None:
        """As a response does: list, then call, then call again."""
        declared = McpTool(
            server_label="s", server_url=f"http://127.0.0.1:{self._port}/{name}", authorization=SECRET,
            headers={"X-Api-Key": f"{SECRET}-too"},
        )  # fmt: skip
        client = Mcp(_SETTINGS, Egress())
        try:
            async with asyncio.timeout(30):
                await self._list_and_call(name, client, declared)
        except TimeoutError:
            self._findings.violated(f"{name} hangs")
        await client.close()
        self._findings.tried()

    async def _list_and_call(self, name: str, client: Mcp, declared: McpTool) -> None:
        tools = client.begin("t", [declared])
        began = time.monotonic()
        try:
            listed = await tools.list("s")
            said = msgspec.json.encode(listed)
        except McpFailed as error:
            said = error.message.encode()
        self._judge(name, "list", time.monotonic() - began - LIST_SECONDS, said)
        for number in range(2):
            began = time.monotonic()
            used = await tools.run(_use(number, "s", f"m{number}"), _nobody)
            assert isinstance(used.item, McpCall)
            longest = LONGEST_SECONDS if "progress" in name else LIST_SECONDS + CALL_SECONDS
            self._judge(name, "call", time.monotonic() - began - longest, msgspec.json.encode(used))
            completed = used.item.status == "completed"
            self._answered += completed
            self._refused += not completed

    def _judge(self, name: str, what: str, over: float, said: bytes) -> None:
        self._overrun = max(self._overrun, over)
        if over > MOST_OVERRUN:
            self._findings.violated(f"{name}: the {what} took {over:.2f} s too long")
        if SECRET.encode() in said:
            self._findings.violated(f"{name}: the {what} has the secret")


async def _crowd(port: int, calls: int, findings: Findings) -> None:
    """Nonces that come back to whoever sent them."""
    patient = McpSettings(at_home=True, list_seconds=60, call_seconds=600, longest_seconds=600)
    client = Mcp(patient, Egress())
    began, crossed, failed = time.monotonic(), 0, 0
    labels = [f"s{number}" for number in range(SERVERS)]
    declared = [McpTool(server_label=label, server_url=f"http://127.0.0.1:{port}/good{label}") for label in labels]

    async def call(number: int) -> None:
        nonlocal crossed, failed
        tools = client.begin(f"tenant {number % TENANTS}", declared)
        label = labels[number // TENANTS % SERVERS]
        item = (await tools.run(_use(number, label, f"nonce-{number}"), _nobody)).item
        assert isinstance(item, McpCall)
        failed += item.status != "completed"
        crossed += item.status == "completed" and item.output != f"nonce-{number}"

    await asyncio.gather(*map(call, range(calls)))
    await client.close()
    findings.tried(calls)
    if crossed or failed:
        findings.violated(f"of {calls:,} calls at once {crossed} got another's result, and {failed} none")
    findings.figure(Figure("calls/s", calls / (time.monotonic() - began)))


def _highest() -> float:
    """What this process ever had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _use(number: int, label: str, message: str) -> Use:
    arguments = json.dumps({"message": message})
    return Use(key=number, id=f"mcp_{number}", name="echo", namespace=label, arguments=arguments)


async def _nobody(delta: Delta) -> None: ...


async def _counts(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /counts HTTP/1.1\r\n\r\n")
    try:
        return (await reader.read()).partition(b"\r\n\r\n")[2]
    finally:
        writer.close()
