"""An MCP server of the mcp package in its own thread. It adds numbers, records its calls, and can change its
description.
"""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import uvicorn
from mcp.server import MCPServer

ORIGINAL_DESCRIPTION = "Adds two numbers."


class SumServer:
    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []
        self.url = ""
        self.called = threading.Event()
        self.released = threading.Event()  # while cleared, calls block
        self.released.set()
        self._server: MCPServer = MCPServer("sums")
        self.add_tool(self._add, "add", ORIGINAL_DESCRIPTION)

    def add_tool(self, function: Callable[..., Awaitable[str]], name: str, description: str) -> None:
        self._server.add_tool(function, name=name, description=description, structured_output=False)

    async def _add(self, a: int, b: int) -> str:
        self.calls.append((a, b))
        self.called.set()
        await asyncio.to_thread(self.released.wait, 30)
        return f"{a} + {b} = {a + b}"

    def describe(self, description: str) -> None:
        """Change the description of the tool."""
        self._server.remove_tool("add")
        self.add_tool(self._add, "add", description)

    def create_server(self) -> "UvicornServer":
        app = self._server.streamable_http_app(stateless_http=True, json_response=True)
        return UvicornServer(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))


class UvicornServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


@contextmanager
def run_sum_server() -> Iterator[SumServer]:
    sums = SumServer()
    server = sums.create_server()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sums.url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
        thread.start()
        try:
            assert server.up.wait(20)
            yield sums
        finally:
            sums.released.set()
            server.should_exit = True
            thread.join(20)
