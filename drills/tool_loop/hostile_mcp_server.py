"""The same hostile MCP servers through the whole server: each is declared in a request whose model calls the listed
tools.

Every response completes in time, whatever happens to its MCP servers, and contains no credential.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from antiphon.config import Config
from antiphon.engines.fake import FakeEngine
from antiphon.wiring import build_app
from drills.harness.findings import Figure, Findings
from drills.harness.in_process import LocalClient

LIST_SECONDS, CALL_SECONDS = 2.0, 1.0
MAX_CALL_SECONDS = 10 * CALL_SECONDS  # for calls with progress
MAX_OVERRUN_SECONDS = 1.0
AT_ONCE = 4
SECRET = "canary-77b0e2d4c6"


async def try_through_server(port: int, names: Sequence[str], findings: Findings) -> None:
    async with _open_server() as client:
        drill = _Drill(client, port, findings)
        await drill.send("good")
        for begin in range(0, len(names), AT_ONCE):
            await asyncio.gather(*map(drill.try_server, names[begin : begin + AT_ONCE]))
    findings.add_figure(Figure("response overrun s", drill.overrun, maximum=MAX_OVERRUN_SECONDS))


@asynccontextmanager
async def _open_server() -> AsyncIterator[LocalClient]:
    config = Config.from_settings(
        engine="fake", store="memory", tool_timeout=CALL_SECONDS, tool_list_timeout=LIST_SECONDS, log_level="error"
    )
    app = build_app(config, FakeEngine())
    await app.lifecycle.open()
    try:
        yield LocalClient(app)
    finally:
        await app.lifecycle.close()


class _Drill:
    def __init__(self, client: LocalClient, port: int, findings: Findings) -> None:
        self._client = client
        self._port = port
        self._findings = findings
        self.overrun = 0.0

    async def send(self, name: str) -> tuple[int, dict[str, Any], bytes]:
        tool = {
            "type": "mcp", "server_label": "s", "server_url": f"http://127.0.0.1:{self._port}/{name}",
            "authorization": SECRET, "headers": {"X-Api-Key": f"{SECRET}-too"},
        }  # fmt: skip
        body = {"model": "fake", "input": "hi", "tools": [tool], "store": False}
        answer = await self._client.post(body)
        return answer.status, answer.json(), answer.body

    async def try_server(self, name: str) -> None:
        began = time.monotonic()
        status, response, body = await self.send(name)
        longest = MAX_CALL_SECONDS if "progress" in name else 2 * LIST_SECONDS + CALL_SECONDS
        overrun = time.monotonic() - began - longest
        self.overrun = max(self.overrun, overrun)
        self._findings.add_trials()
        # the fake engine repeats the whole result
        cut = (response.get("incomplete_details") or {}).get("reason") == "max_output_tokens"
        if status != 200 or (response.get("status") != "completed" and not cut):
            self._findings.add_violation(f"{name}: {status} {body[:200]!r}")
        if overrun > MAX_OVERRUN_SECONDS:
            self._findings.add_violation(f"{name}: the response took {overrun:.2f} s too long")
        if SECRET.encode() in body:
            self._findings.add_violation(f"{name}: the response contains the secret")
