"""A tool server of the mcp package in its own thread, with the functions of gpt-oss: python, search, open, find, exec.

It keeps the variables of each session, and the pages that each has seen. `python -m` runs it on stdin and stdout.
"""

import asyncio
import io
import socket
import subprocess
import threading
import traceback
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, Literal

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Image
from mcp.types import CallToolResult, TextContent
from starlette.applications import Starlette

from antiphon.config import Config
from antiphon.config.tool_settings import TOOL_SERVERS, McpServerSpec
from antiphon.tools.base import ToolServices
from tests.egress.hosts import make_egress_client
from tests.support.media_files import png
from tests.tools.mcp.sum_server import UvicornServer

Json = dict[str, Any]
RESULTS = "\n**viewing lines [0 - 1] of 1**\n\nL0: * 【0†Otters†otters.example】 Otters hold hands.\nL1: URL: {url}"
PAGE_URL = "https://otters.example/food"
PAGE = "Otters ({url})\n**viewing lines [0 - 1] of 1**\n\nL0: Otters eat fish.\nL1: They hold hands."

FOUND = "Find results for text: `{0}` in `Otters` ({url}/find?pattern={0})\n**lines**\n\nL0: # 【0†match】\nL1: {0}"


class LocalToolServer:
    def __init__(self) -> None:
        self.url = ""
        self.requests = 0  # of HTTP
        self.calls: list[tuple[str, Json, Json]] = []  # function, arguments and headers
        self.called = threading.Event()
        self.released = threading.Event()  # while cleared, calls block
        self.released.set()
        self._variables: dict[str, Json] = defaultdict(dict)
        self._page_counts: dict[str, int] = defaultdict(int)
        self.server: MCPServer = MCPServer("tools")
        for function in (self.python, self.search, self.open, self.find, self.exec):
            self.server.add_tool(function, structured_output=False)

    async def _begin(self, name: str, context: Context, **arguments: Any) -> str:
        headers = dict(context.headers or {})
        self.calls.append((name, arguments, headers))
        self.called.set()
        await asyncio.to_thread(self.released.wait, 60)
        return str(headers.get("x-session-id"))

    async def python(self, code: str, context: Context) -> list[str | Image] | CallToolResult:
        session = await self._begin("python", context, code=code)
        if code == "figure":
            return ["drawn", Image(data=png(), format="png")]
        printed = io.StringIO()
        try:
            with redirect_stdout(printed):
                exec(code, self._variables[session])  # noqa: S102 - it is the code of a test
        except Exception:
            text = traceback.format_exc(limit=0)
            return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)
        return [printed.getvalue()]

    async def search(self, query: str, context: Context, topn: int = 10, source: str | None = None) -> str:
        return self._show(await self._begin("search", context, query=query, topn=topn), query + RESULTS)

    async def open(
        self, context: Context, id: int | str = -1, cursor: int = -1, loc: int = -1, num_lines: int = -1
    ) -> str:
        session = await self._begin("open", context, id=id, cursor=cursor, loc=loc, num_lines=num_lines)
        return self._show(session, PAGE)

    async def find(self, pattern: str, context: Context, cursor: int = -1) -> str:
        session = await self._begin("find", context, pattern=pattern, cursor=cursor)
        found = (
            "Find results for text: `{0}` in `Otters` ({url}/find?pattern={0})\n**lines**\n\nL0: # 【0†match】\nL1: {0}"
        )
        return self._show(session, found.replace("{0}", pattern))

    def _show(self, session: str, page: str) -> str:
        self._page_counts[session] += 1
        return f"[{self._page_counts[session] - 1}] {page.format(url=PAGE_URL)}"

    async def exec(
        self,
        cmd: list[str],
        context: Context,
        timeout: int | None = None,  # noqa: ASYNC109 - gpt-oss's name
    ) -> CallToolResult:
        await self._begin("exec", context, cmd=cmd, timeout=timeout)
        done = await asyncio.to_thread(subprocess.run, cmd, capture_output=True, text=True, check=False)
        content = [TextContent(type="text", text=done.stdout)]
        if "plain" in cmd[-1]:
            return CallToolResult(content=[*content], is_error=bool(done.returncode))
        known = {"stdout": done.stdout, "stderr": done.stderr, "exit_code": done.returncode}
        return CallToolResult(content=[*content], structured_content=known)

    def start(self, listener: socket.socket, app: Starlette) -> None:

        async def count_requests(scope: Any, receive: Any, send: Any) -> None:
            self.requests += scope["type"] == "http"
            await app(scope, receive, send)

        config = uvicorn.Config(count_requests, log_level="error", timeout_graceful_shutdown=1)
        self._uvicorn = UvicornServer(config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._uvicorn.serve([listener])))
        self._thread.start()
        assert self._uvicorn.up.wait(20)

    def crash(self) -> None:
        """Close all connections, also those of running calls."""
        self._uvicorn.should_exit = True

    def stop(self) -> None:
        self.released.set()
        self.crash()
        self._thread.join(20)

    def sessions(self) -> list[str]:
        return [headers["x-session-id"] for _, _, headers in self.calls]


@contextmanager
def run_tool_server(path: Literal["mcp", "sse"] = "mcp") -> Iterator[LocalToolServer]:
    local = LocalToolServer()
    streamable = local.server.streamable_http_app(stateless_http=True, json_response=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        local.url = f"http://127.0.0.1:{listener.getsockname()[1]}/{path}"
        local.start(listener, streamable if path == "mcp" else local.server.sse_app())
        try:
            yield local
        finally:
            local.stop()


def make_services(url: str, token: str | None = None, description: str | None = None, **settings: Any) -> ToolServices:
    """Return services with a server at this URL for all tools."""
    specs = tuple(
        [McpServerSpec(label=name, url=url, authorization=token, description=description) for name in TOOL_SERVERS]
    )
    return ToolServices(config=Config.from_settings(tool_servers=specs, **settings), egress=make_egress_client())


if __name__ == "__main__":
    LocalToolServer().server.run("stdio")
