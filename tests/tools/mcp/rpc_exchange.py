"""One request to an MCP server, and the answer that is due."""

import asyncio
import json
from typing import Any

Json = dict[str, Any]
ECHO = {"name": "echo", "inputSchema": {"type": "object", "properties": {"message": {"type": "string"}}}}


class Talk:
    """One request, and where to answer it."""

    def __init__(self, head: bytes, body: bytes, writer: asyncio.StreamWriter, canary: str) -> None:
        self.verb, self.target, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
        self.name = self.target.strip("/").partition("?")[0]
        self.head = head
        self.message: Json = json.loads(body) if body.strip() else {}
        self.canary = canary
        self._writer = writer

    @property
    def method(self) -> str:
        return str(self.message.get("method", ""))

    @property
    def id(self) -> Any:
        return self.message.get("id")

    async def raw(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()

    async def http(self, body: bytes = b"", *headers: str, status: str = "200 OK") -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
        await self.raw("\r\n".join(lines).encode(), body)

    async def json(self, value: Any, *headers: str) -> None:
        await self.http(json.dumps(value).encode(), "Content-Type: application/json", *headers)

    async def result(self, result: Json, *headers: str, id: Any = None) -> None:
        await self.json({"jsonrpc": "2.0", "id": self.id if id is None else id, "result": result}, *headers)

    async def begin(self, kind: str) -> None:
        """An answer whose length is not known."""
        await self.raw(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n".encode())

    async def event(self, value: Any, more: str = "") -> None:
        await self.raw(f"{more}event: message\ndata: {json.dumps(value)}\n\n".encode())

    async def forever(self) -> None:
        await asyncio.sleep(3600)  # held by its timer: a task that waits for nothing at all is thrown away


def due(talk: Talk) -> Json:
    """The result that is due."""
    params = talk.message.get("params", {})
    match talk.method:
        case "initialize":
            us = {"name": talk.name, "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": us}
        case "tools/list":
            return {"tools": [ECHO]}
        case "tools/call":
            return {"content": [{"type": "text", "text": f"{params['arguments'].get('message')}"}]}
        case _:
            return {}


async def behave(talk: Talk) -> None:
    if talk.verb != "POST":
        await talk.http(status="405 Method Not Allowed" if talk.verb == "GET" else "200 OK")
    elif talk.id is None or not talk.method:
        await talk.http(status="202 Accepted")
    elif talk.method == "server/discover":
        error = {"code": -32601, "message": "Method not found"}
        await talk.json({"jsonrpc": "2.0", "id": talk.id, "error": error})
    else:
        session = ["Mcp-Session-Id: s1"] if talk.method == "initialize" else []
        await talk.result(due(talk), *session)
