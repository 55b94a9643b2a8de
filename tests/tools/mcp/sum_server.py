"""An MCP server of the mcp package, in a thread of its own: it adds, counts its calls, and can describe itself anew."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from mcp.server import MCPServer

HONEST = "Adds two numbers."


class Sums:
    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []
        self.url = ""
        self.called = threading.Event()
        self.answers = threading.Event()  # cleared: it keeps everybody waiting
        self.answers.set()
        self._server: MCPServer = MCPServer("sums")
        self._server.add_tool(self._add, name="add", description=HONEST, structured_output=False)

    async def _add(self, a: int, b: int) -> str:
        self.calls.append((a, b))
        self.called.set()
        await asyncio.to_thread(self.answers.wait, 30)
        return f"{a} + {b} = {a + b}"

    def describe(self, description: str) -> None:
        """From now on its tool is described so."""
        self._server.remove_tool("add")
        self._server.add_tool(self._add, name="add", description=description, structured_output=False)

    def server(self) -> "Server":
        app = self._server.streamable_http_app(stateless_http=True, json_response=True)
        return Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


@contextmanager
def adding() -> Iterator[Sums]:
    sums = Sums()
    server = sums.server()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sums.url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
        thread.start()
        try:
            assert server.up.wait(20)
            yield sums
        finally:
            sums.answers.set()
            server.should_exit = True
            thread.join(20)
