"""MCP servers that behave correctly until a certain message, and then misbehave. The URL path selects the behaviour.

    http://127.0.0.1:PORT/silent.call       answers everything except tool calls
    http://127.0.0.1:PORT/good              behaves correctly

`python -m tests.tools.mcp.hostile_server CANARY` serves all of them and prints its port; redirects lead to CANARY.
"""

import asyncio
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.local_servers import serve_tcp
from tests.tools.mcp.hostile_behaviours import STAGES, list_behaviours
from tests.tools.mcp.rpc_exchange import RpcExchange, send_correct_reply


class HostileServer:
    def __init__(self, canary: str = "http://127.0.0.1:9") -> None:
        self.canary = canary
        self.port = 0
        self.calls: Counter[str] = Counter()  # tool calls received, by path and message
        self._behaviours = list_behaviours()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.port}/{name}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (exchange := await self._read(reader, writer)) is not None and await self._answer(exchange):
            pass

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> RpcExchange | None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0)
        return RpcExchange(head, await reader.readexactly(length), writer, self.canary)

    async def _answer(self, exchange: RpcExchange) -> bool:
        """Answer a request. Returns whether the connection stays open."""
        if exchange.name == "counts":
            await exchange.send_json(self.calls)
            return False
        if exchange.method == "tools/call":
            self.calls[f"{exchange.name} {exchange.message['params']['arguments'].get('message')}"] += 1
        behaviour, stage = self._behaviours.get(exchange.name), exchange.name.rpartition(".")[2]
        if behaviour is None or exchange.method not in STAGES[stage]:
            await send_correct_reply(exchange)
            return True
        await behaviour(exchange)
        return False


@asynccontextmanager
async def run_hostile_server(
    hostile: HostileServer | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[HostileServer]:
    hostile = hostile or HostileServer()
    async with serve_tcp(hostile.serve, ssl=tls) as hostile.port:
        yield hostile


async def _main() -> None:
    async with run_hostile_server(HostileServer(sys.argv[1])) as hostile:
        sys.stdout.write(f"{hostile.port}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)  # until the parent process exits


if __name__ == "__main__":
    asyncio.run(_main())
