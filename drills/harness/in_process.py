"""A client of an application in the same process: what the application sends is put into the bytes that a server would
have sent, so that everything that reads them is the same for both."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from antiphon.transport.middleware.app import App
from drills.harness.client import Client, Stream

_HOST = (b"host", b"127.0.0.1:8000")
_JSON = (b"content-type", b"application/json")


class Exchange:
    """One request, as ASGI has it."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._gone = asyncio.Event()
        self.reader = asyncio.StreamReader(limit=1 << 24)

    def hang_up(self, reset: bool) -> None:
        self._gone.set()

    async def receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
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
        exchange = Exchange(b"" if body is None else msgspec.json.encode(body))
        headers = [_HOST, _JSON] if body is not None else [_HOST]
        if key is not None:
            headers.append((b"idempotency-key", key.encode()))
        answering = asyncio.create_task(self._answer(exchange, _scope(method, path, headers)))
        try:
            stream = Stream(exchange.reader, exchange.hang_up)
            await stream.begin()
            yield stream
        finally:
            exchange.hang_up(False)
            await answering

    async def _answer(self, exchange: Exchange, scope: dict[str, Any]) -> None:
        try:
            await self._app(scope, exchange.receive, exchange.send)
        finally:
            exchange.reader.feed_eof()


def _scope(method: str, path: str, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    plain, _, query = path.partition("?")
    return {
        "type": "http",
        "method": method,
        "path": plain,
        "raw_path": plain.encode(),
        "query_string": query.encode(),
        "headers": headers,
    }
