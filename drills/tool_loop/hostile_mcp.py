"""Hostile MCP servers: each is listed and called as in a response, and many concurrent calls go to a few servers.

Whatever the servers do, no request exceeds its deadline, no call is sent twice, nothing is sent to the target of a
redirect, no credential is returned, no call receives the result of another one, and no memory is retained.
"""

import asyncio
import json
import logging
import resource
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from antiphon.core.deltas import Delta
from antiphon.egress import EgressClient
from antiphon.errors import McpFailed
from antiphon.protocol.types.items import McpCall
from antiphon.protocol.types.tools import McpTool
from antiphon.tools.base import ModelToolCall
from antiphon.tools.mcp.client import McpClient
from antiphon.tools.mcp.servers import McpSettings
from drills.engines.floods import measure_rss
from drills.harness.findings import Figure, Findings
from drills.tool_loop.hostile_mcp_server import try_through_server
from tests.egress.hosts import Host, respond_with, run_host
from tests.tools.mcp.hostile_behaviours import list_behaviours

LIST_SECONDS, CALL_SECONDS, MAX_CALL_SECONDS = 2.0, 1.0, 3.0
MAX_OVERRUN_SECONDS = 1.0
MAX_GROWTH_MIB = 64.0
AT_ONCE = 4
SERVERS, TENANTS = 4, 5  # for the concurrent calls
SECRET = "canary-3f1c9a7e5b"
_SETTINGS = McpSettings(
    at_home=True, list_seconds=LIST_SECONDS, call_seconds=CALL_SECONDS, longest_seconds=MAX_CALL_SECONDS
)


async def mcp(calls: int, findings: Findings, step: int = 1) -> None:
    """Try every `step`-th server, then make this many concurrent calls."""
    logs = _LogCapture()
    logging.getLogger().addHandler(logs)
    async with run_host(respond_with(b"{}")) as canary, _run_hostile_servers(f"http://127.0.0.1:{canary.port}") as port:
        names = [*list_behaviours()][::step]
        await _Drill(port, findings).try_all(names, canary)
        await _call_concurrently(port, calls, findings)
        await try_through_server(port, names, findings)
    logging.getLogger().removeHandler(logs)
    findings.add_violations(f"a log line contains the secret: {line[:80]}" for line in logs.lines if SECRET in line)


class _LogCapture(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@asynccontextmanager
async def _run_hostile_servers(canary: str) -> AsyncIterator[int]:
    """Run the hostile servers in a separate process, so that only the received data costs memory here; yields the
    port.
    """
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
        self._completed = self._failed = 0

    async def try_all(self, names: Sequence[str], canary: Host) -> None:
        await self._warm_up()
        memory, peak = measure_rss(), _peak_mib()
        for begin in range(0, len(names), AT_ONCE):
            await asyncio.gather(*map(self._try_server, names[begin : begin + AT_ONCE]))
        counts = json.loads(await _fetch_counts(self._port))
        self._findings.add_violations(f"{what} was called {times} times" for what, times in counts.items() if times > 1)
        if canary.connects:
            self._findings.add_violation(f"a redirect or a hint was followed, {canary.connects} times")
        if running_tasks := [task for task in asyncio.all_tasks() if task.get_name().startswith("mcp ")]:
            self._findings.add_violation(f"{len(running_tasks)} tasks are still running")
        self._findings.add_figure(Figure("servers", len(names)))
        self._findings.add_figure(Figure("overrun s", self._overrun, maximum=MAX_OVERRUN_SECONDS))
        self._findings.add_figure(Figure("growth MiB", measure_rss() - memory, maximum=MAX_GROWTH_MIB))
        self._findings.add_figure(Figure("peak MiB", _peak_mib() - peak, maximum=MAX_GROWTH_MIB))
        self._findings.add_figure(Figure("completed", self._completed))
        self._findings.add_figure(Figure("failed", self._failed))

    async def _warm_up(self) -> None:
        """Load everything that stays in memory before it is measured."""
        client = McpClient(_SETTINGS, EgressClient())
        await client.begin(
            "t", [McpTool(server_label="s", server_url=f"http://127.0.0.1:{self._port}/good")]
        ).list_tools("s")
        await client.close()

    async def _try_server(self, name: str) -> None:
        """List the tools and call one twice, as a response does."""
        tool = McpTool(
            server_label="s", server_url=f"http://127.0.0.1:{self._port}/{name}", authorization=SECRET,
            headers={"X-Api-Key": f"{SECRET}-too"},
        )  # fmt: skip
        client = McpClient(_SETTINGS, EgressClient())
        try:
            async with asyncio.timeout(30):
                await self._list_and_call(name, client, tool)
        except TimeoutError:
            self._findings.add_violation(f"{name} timed out")
        await client.close()
        self._findings.add_trials()

    async def _list_and_call(self, name: str, client: McpClient, tool: McpTool) -> None:
        tools = client.begin("t", [tool])
        began = time.monotonic()
        try:
            listed = await tools.list_tools("s")
            content = msgspec.json.encode(listed)
        except McpFailed as error:
            content = error.message.encode()
        self._check(name, "list", time.monotonic() - began - LIST_SECONDS, content)
        for number in range(2):
            began = time.monotonic()
            result = await tools.run(_make_call(number, "s", f"m{number}"), _ignore_delta)
            assert isinstance(result.item, McpCall)
            longest = MAX_CALL_SECONDS if "progress" in name else LIST_SECONDS + CALL_SECONDS
            self._check(name, "call", time.monotonic() - began - longest, msgspec.json.encode(result))
            completed = result.item.status == "completed"
            self._completed += completed
            self._failed += not completed

    def _check(self, name: str, operation: str, overrun: float, content: bytes) -> None:
        self._overrun = max(self._overrun, overrun)
        if overrun > MAX_OVERRUN_SECONDS:
            self._findings.add_violation(f"{name}: the {operation} took {overrun:.2f} s too long")
        if SECRET.encode() in content:
            self._findings.add_violation(f"{name}: the result of the {operation} contains the secret")


async def _call_concurrently(port: int, calls: int, findings: Findings) -> None:
    """Each call must receive its own nonce."""
    settings = McpSettings(at_home=True, list_seconds=60, call_seconds=600, longest_seconds=600)
    client = McpClient(settings, EgressClient())
    began, crossed, failed = time.monotonic(), 0, 0
    labels = [f"s{number}" for number in range(SERVERS)]
    declarations = [McpTool(server_label=label, server_url=f"http://127.0.0.1:{port}/good{label}") for label in labels]

    async def call(number: int) -> None:
        nonlocal crossed, failed
        tools = client.begin(f"tenant {number % TENANTS}", declarations)
        label = labels[number // TENANTS % SERVERS]
        item = (await tools.run(_make_call(number, label, f"nonce-{number}"), _ignore_delta)).item
        assert isinstance(item, McpCall)
        failed += item.status != "completed"
        crossed += item.status == "completed" and item.output != f"nonce-{number}"

    await asyncio.gather(*map(call, range(calls)))
    await client.close()
    findings.add_trials(calls)
    if crossed or failed:
        findings.add_violation(
            f"of {calls:,} concurrent calls {crossed} got the result of another, and {failed} failed"
        )
    findings.add_figure(Figure("calls/s", calls / (time.monotonic() - began)))


def _peak_mib() -> float:
    """Return the peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _make_call(number: int, label: str, message: str) -> ModelToolCall:
    arguments = json.dumps({"message": message})
    return ModelToolCall(key=number, id=f"mcp_{number}", name="echo", namespace=label, arguments=arguments)


async def _ignore_delta(delta: Delta) -> None: ...


async def _fetch_counts(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /counts HTTP/1.1\r\n\r\n")
    try:
        return (await reader.read()).partition(b"\r\n\r\n")[2]
    finally:
        writer.close()
