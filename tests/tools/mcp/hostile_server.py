"""MCP servers that do what they should until a certain message comes, and then what they like. The path says which.

    http://127.0.0.1:PORT/silent.call       answers everything but calls of tools
    http://127.0.0.1:PORT/good              does as it should

`python -m tests.tools.mcp.hostile_server CANARY` serves them all, and says its port; the canary is where redirects
lead."""

import asyncio
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.local_servers import tcp
from tests.tools.mcp.hostile_behaviours import STAGES, deeds
from tests.tools.mcp.rpc_exchange import Talk, behave


class Hostile:
    def __init__(self, canary: str = "http://127.0.0.1:9") -> None:
        self.canary = canary
        self.port = 0
        self.calls: Counter[str] = Counter()  # that came, by path and message
        self._deeds = deeds()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.port}/{name}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (talk := await self._read(reader, writer)) is not None and await self._answer(talk):
            pass

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Talk | None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0)
        return Talk(head, await reader.readexactly(length), writer, self.canary)

    async def _answer(self, talk: Talk) -> bool:
        """Whether the connection goes on."""
        if talk.name == "counts":
            await talk.json(self.calls)
            return False
        if talk.method == "tools/call":
            self.calls[f"{talk.name} {talk.message['params']['arguments'].get('message')}"] += 1
        deed, stage = self._deeds.get(talk.name), talk.name.rpartition(".")[2]
        if deed is None or talk.method not in STAGES[stage]:
            await behave(talk)
            return True
        await deed(talk)
        return False


@asynccontextmanager
async def serving(hostile: Hostile | None = None, tls: ssl.SSLContext | None = None) -> AsyncIterator[Hostile]:
    hostile = hostile or Hostile()
    async with tcp(hostile.serve, ssl=tls) as hostile.port:
        yield hostile


async def _main() -> None:
    async with serving(Hostile(sys.argv[1])) as hostile:
        sys.stdout.write(f"{hostile.port}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)  # until whoever started it is gone


if __name__ == "__main__":
    asyncio.run(_main())
