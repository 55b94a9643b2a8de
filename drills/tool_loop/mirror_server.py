"""An MCP server that knows who may ask it, and repeats to whoever asks what they said of themselves.

The path says where it does so, and whether all is well otherwise: `/call.401`, `/list.500`, `/good`. What it was told
is what only it should ever have seen.
"""

import asyncio
import re
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.support.local_servers import tcp
from tests.tools.mcp.rpc_exchange import Talk, behave, due

Deed = Callable[[Talk, str], Awaitable[None]]
_SAID = (b"authorization", b"cookie", b"x-api-key")
_METHODS = {"list": "tools/list", "call": "tools/call"}


async def _status(talk: Talk, told: str, status: str) -> None:
    await talk.http(f"You said {told}".encode(), f'WWW-Authenticate: Bearer error="{told}"', status=status)


async def _error(talk: Talk, told: str) -> None:
    error = {"code": -32000, "message": f"Who is {told}?", "data": {"told": told}}
    await talk.json({"jsonrpc": "2.0", "id": talk.id, "error": error})


async def _result(talk: Talk, told: str, **more: Any) -> None:
    if talk.method == "tools/list":
        said = {"type": "string", "description": f"as {told} said"}
        tool = {
            "name": "echo",
            "description": f"For {told}.",
            "inputSchema": {"type": "object", "properties": {"a": said}},
        }
        await talk.result({"tools": [tool, {**tool, "name": f"x{told}"[:60]}]})
    else:
        content = [
            {"type": "text", "text": f"{told} called."},
            {"type": "resource_link", "uri": f"http://x.example/{told}", "name": told},
        ]
        await talk.result({"content": content, "structuredContent": {"told": told}, **more})


async def _silence(talk: Talk, told: str) -> None:
    await talk.begin("text/event-stream")
    await talk.raw(f": {told}\n\n".encode())
    await talk.forever()


async def _progress(talk: Talk, told: str) -> None:
    token = talk.message.get("params", {}).get("_meta", {}).get("progressToken")
    await talk.begin("text/event-stream")
    said = {"progressToken": token, "progress": 1, "message": told}
    await talk.event({"jsonrpc": "2.0", "method": "notifications/progress", "params": said})
    note = {"level": "error", "data": told}
    await talk.event({"jsonrpc": "2.0", "method": "notifications/message", "params": note})
    await talk.event({"jsonrpc": "2.0", "id": talk.id, "result": due(talk)})


DEEDS: dict[str, Deed] = {
    "401": lambda talk, told: _status(talk, told, "401 Unauthorized"),
    "403": lambda talk, told: _status(talk, told, "403 Forbidden"),
    "500": lambda talk, told: _status(talk, told, f"500 {told}"),
    "302": lambda talk, told: talk.http(b"", f"Location: http://127.0.0.1:9/{told}", status="302 Found"),
    "garbage": lambda talk, told: talk.http(told.encode(), "Content-Type: application/json"),
    "kind": lambda talk, told: talk.http(told.encode(), f"Content-Type: text/{told}"),
    "rpc": _error,
    "result": _result,
    "tool-error": lambda talk, told: _result(talk, told, isError=True),
    "silence": _silence,
    "progress": _progress,
}


class Mirror:
    def __init__(self) -> None:
        self.port = 0
        self.told: set[str] = set()  # all that was said by who asked
        self.called = asyncio.Event()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            length = next((int(line[15:]) for line in lines if line[:15] == b"content-length:"), 0)
            await self._answer(Talk(head, await reader.readexactly(length), writer, ""))

    async def _answer(self, talk: Talk) -> None:
        told = _told(talk.head)
        self.told.add(told)
        if talk.method == "tools/call":
            self.called.set()
        stage, _, deed = talk.name.partition(".")
        if not told:
            await talk.http(b"who are you?", status="401 Unauthorized")
        elif deed and talk.method == _METHODS[stage]:
            await DEEDS[deed](talk, _repeated(told))
        else:
            await behave(talk)


def _repeated(told: str) -> str:
    """All of it, and then what it takes for the heart of it."""
    scheme, _, rest = told.partition(" ")
    heart = b64decode(rest).decode() if scheme == "Basic" else max(re.split(r"[\s;,=]+", told), key=len)
    return f"{told} {heart}"


def _told(head: bytes) -> str:
    """The value of the header that says who asks."""
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() in _SAID:
            return value.strip().decode("latin-1")
    return ""


@asynccontextmanager
async def mirroring() -> AsyncIterator[Mirror]:
    mirror = Mirror()
    async with tcp(mirror.serve) as mirror.port:
        yield mirror
