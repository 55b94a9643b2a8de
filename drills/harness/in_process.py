"""A client of an ASGI application in the same process.

The application's messages are converted to the bytes that a server would send, so the same code reads both.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from antiphon.transport.middleware.app import App
from drills.harness.client import Client, Stream

_HOST = (b"host", b"127.0.0.1:8000")
_JSON = (b"content-type", b"application/json")


class AsgiExchange:
    """One HTTP request with its ASGI `receive` and `send` callables."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._disconnected = asyncio.Event()
        self.reader = asyncio.StreamReader(limit=1 << 24)

    def disconnect(self, reset: bool) -> None:
        self._disconnected.set()

    async def receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            head = [f"HTTP/1.1 {message['status']} .", "transfer-encoding: chunked"]
            head += [f"{name.decode()}: {value.decode()}" for name, value in message["headers"]]
            self.reader.feed_data("\r\n".join([*head, "", ""]).encode())
            return
        if piece := message.get("body", b""):
            self.reader.feed_data(b"%x\r\n%b\r\n" % (len(piece), piece))
        if not message.get("more_body", False):
            self.reader.feed_data(b"0\r\n\r\n")


class LocalClient(Client):
    def __init__(self, app: App) -> None:
        super().__init__(0)
        self._app = app

    @contextlib.asynccontextmanager
    async def open(self, method: str, path: str, body: Any = None, key: str | None = None) -> AsyncIterator[Stream]:
        exchange = AsgiExchange(b"" if body is None else msgspec.json.encode(body))
        headers = [_HOST, _JSON] if body is not None else [_HOST]
        if key is not None:
            headers.append((b"idempotency-key", key.encode()))
        task = asyncio.create_task(self._run_app(exchange, _build_scope(method, path, headers)))
        try:
            stream = Stream(exchange.reader, exchange.disconnect)
            await stream.read_head()
            yield stream
        finally:
            exchange.disconnect(False)
            await task

    async def _run_app(self, exchange: AsgiExchange, scope: dict[str, Any]) -> None:
        try:
            await self._app(scope, exchange.receive, exchange.send)
        finally:
            exchange.reader.feed_eof()


def _build_scope(method: str, path: str, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    plain, _, query = path.partition("?")
    return {
        "type": "http",
        "method": method,
        "path": plain,
        "raw_path": plain.encode(),
        "query_string": query.encode(),
        "headers": headers,
    }
