"""One request to an MCP server, and its correct response."""

import asyncio
import json
from typing import Any

Json = dict[str, Any]
ECHO = {"name": "echo", "inputSchema": {"type": "object", "properties": {"message": {"type": "string"}}}}


class RpcExchange:
    """One HTTP request with a JSON-RPC message, and the connection on which it is answered."""

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

    async def write(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()

    async def send_http(self, body: bytes = b"", *headers: str, status: str = "200 OK") -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
        await self.write("\r\n".join(lines).encode(), body)

    async def send_json(self, value: Any, *headers: str) -> None:
        await self.send_http(json.dumps(value).encode(), "Content-Type: application/json", *headers)

    async def send_result(self, result: Json, *headers: str, id: Any = None) -> None:
        await self.send_json({"jsonrpc": "2.0", "id": self.id if id is None else id, "result": result}, *headers)

    async def begin_response(self, media_type: str) -> None:
        """Begin a response of unknown length."""
        await self.write(f"HTTP/1.1 200 OK\r\nContent-Type: {media_type}\r\nConnection: close\r\n\r\n".encode())

    async def send_event(self, value: Any, prefix: str = "") -> None:
        await self.write(f"{prefix}event: message\ndata: {json.dumps(value)}\n\n".encode())

    async def wait_forever(self) -> None:
        # the loop references the timer; a task that waits for nothing would be garbage-collected
        await asyncio.sleep(3600)


def build_result(exchange: RpcExchange) -> Json:
    """Return the correct result for the request."""
    params = exchange.message.get("params", {})
    match exchange.method:
        case "initialize":
            server_info = {"name": exchange.name, "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": server_info}
        case "tools/list":
            return {"tools": [ECHO]}
        case "tools/call":
            return {"content": [{"type": "text", "text": f"{params['arguments'].get('message')}"}]}
        case _:
            return {}


async def send_correct_reply(exchange: RpcExchange) -> None:
    if exchange.verb != "POST":
        await exchange.send_http(status="405 Method Not Allowed" if exchange.verb == "GET" else "200 OK")
    elif exchange.id is None or not exchange.method:
        await exchange.send_http(status="202 Accepted")
    elif exchange.method == "server/discover":
        error = {"code": -32601, "message": "Method not found"}
        await exchange.send_json({"jsonrpc": "2.0", "id": exchange.id, "error": error})
    else:
        session = ["Mcp-Session-Id: s1"] if exchange.method == "initialize" else []
        await exchange.send_result(build_result(exchange), *session)
