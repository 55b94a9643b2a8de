"""An MCP server that requires a credential and repeats it to the caller.

The path selects the method and the way in which the credential is repeated: `/call.401`, `/list.500`; `/good` behaves
correctly. No other component may see the received credentials.
"""

import asyncio
import re
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.support.local_servers import serve_tcp
from tests.tools.mcp.rpc_exchange import RpcExchange, build_result, send_correct_reply

MirrorBehaviour = Callable[[RpcExchange, str], Awaitable[None]]
_CREDENTIAL_HEADERS = (b"authorization", b"cookie", b"x-api-key")
_METHODS = {"list": "tools/list", "call": "tools/call"}


async def _send_status(exchange: RpcExchange, credential: str, status: str) -> None:
    await exchange.send_http(
        f"You said {credential}".encode(), f'WWW-Authenticate: Bearer error="{credential}"', status=status
    )


async def _send_error(exchange: RpcExchange, credential: str) -> None:
    error = {"code": -32000, "message": f"Who is {credential}?", "data": {"told": credential}}
    await exchange.send_json({"jsonrpc": "2.0", "id": exchange.id, "error": error})


async def _send_result(exchange: RpcExchange, credential: str, **more: Any) -> None:
    if exchange.method == "tools/list":
        property_schema = {"type": "string", "description": f"as {credential} said"}
        tool = {
            "name": "echo",
            "description": f"For {credential}.",
            "inputSchema": {"type": "object", "properties": {"a": property_schema}},
        }
        await exchange.send_result({"tools": [tool, {**tool, "name": f"x{credential}"[:60]}]})
    else:
        content = [
            {"type": "text", "text": f"{credential} called."},
            {"type": "resource_link", "uri": f"http://x.example/{credential}", "name": credential},
        ]
        await exchange.send_result({"content": content, "structuredContent": {"told": credential}, **more})


async def _stay_silent(exchange: RpcExchange, credential: str) -> None:
    await exchange.begin_response("text/event-stream")
    await exchange.write(f": {credential}\n\n".encode())
    await exchange.wait_forever()


async def _send_progress(exchange: RpcExchange, credential: str) -> None:
    token = exchange.message.get("params", {}).get("_meta", {}).get("progressToken")
    await exchange.begin_response("text/event-stream")
    progress = {"progressToken": token, "progress": 1, "message": credential}
    await exchange.send_event({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
    note = {"level": "error", "data": credential}
    await exchange.send_event({"jsonrpc": "2.0", "method": "notifications/message", "params": note})
    await exchange.send_event({"jsonrpc": "2.0", "id": exchange.id, "result": build_result(exchange)})


BEHAVIOURS: dict[str, MirrorBehaviour] = {
    "401": lambda exchange, credential: _send_status(exchange, credential, "401 Unauthorized"),
    "403": lambda exchange, credential: _send_status(exchange, credential, "403 Forbidden"),
    "500": lambda exchange, credential: _send_status(exchange, credential, f"500 {credential}"),
    "302": lambda exchange, credential: exchange.send_http(
        b"", f"Location: http://127.0.0.1:9/{credential}", status="302 Found"
    ),
    "garbage": lambda exchange, credential: exchange.send_http(credential.encode(), "Content-Type: application/json"),
    "kind": lambda exchange, credential: exchange.send_http(credential.encode(), f"Content-Type: text/{credential}"),
    "rpc": _send_error,
    "result": _send_result,
    "tool-error": lambda exchange, credential: _send_result(exchange, credential, isError=True),
    "silence": _stay_silent,
    "progress": _send_progress,
}


class MirrorServer:
    def __init__(self) -> None:
        self.port = 0
        self.credentials: set[str] = set()  # all received credentials
        self.called = asyncio.Event()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            length = next((int(line[15:]) for line in lines if line[:15] == b"content-length:"), 0)
            await self._answer(RpcExchange(head, await reader.readexactly(length), writer, ""))

    async def _answer(self, exchange: RpcExchange) -> None:
        credential = _find_credential(exchange.head)
        self.credentials.add(credential)
        if exchange.method == "tools/call":
            self.called.set()
        stage, _, behaviour = exchange.name.partition(".")
        if not credential:
            await exchange.send_http(b"who are you?", status="401 Unauthorized")
        elif behaviour and exchange.method == _METHODS[stage]:
            await BEHAVIOURS[behaviour](exchange, _add_sensitive_part(credential))
        else:
            await send_correct_reply(exchange)


def _add_sensitive_part(credential: str) -> str:
    """Return the whole credential, followed by its sensitive part."""
    scheme, _, encoded = credential.partition(" ")
    sensitive = b64decode(encoded).decode() if scheme == "Basic" else max(re.split(r"[\s;,=]+", credential), key=len)
    return f"{credential} {sensitive}"


def _find_credential(head: bytes) -> str:
    """Return the value of the header that carries the credential."""
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() in _CREDENTIAL_HEADERS:
            return value.strip().decode("latin-1")
    return ""


@asynccontextmanager
async def run_mirror() -> AsyncIterator[MirrorServer]:
    mirror = MirrorServer()
    async with serve_tcp(mirror.serve) as mirror.port:
        yield mirror
