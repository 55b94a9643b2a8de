"""A WebSocket client that calls the application directly, without a server; the test controls every step.

Every received event is validated against the types of the openai package.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from antiphon.transport.middleware.app import App
from tests.oracles.responses import check_socket_event
from tests.support.asgi_client import DEADLINE, HOST, AsgiResponse, Header

FINAL_EVENTS = {"response.completed", "response.incomplete", "response.failed"}
DENIAL_EXTENSION: dict[str, Any] = {"websocket.http.response": {}}

SocketEvent = dict[str, Any]


def socket_scope(path: str, headers: Iterable[Header], query: bytes = b"") -> dict[str, Any]:
    return {
        "type": "websocket",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "headers": [*headers],
        "extensions": DENIAL_EXTENSION,
    }


class WebSocketClient:
    """One WebSocket connection."""

    def __init__(self, app: Any, scope: dict[str, Any]) -> None:
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._inbox.put_nowait({"type": "websocket.connect"})
        self.task = asyncio.ensure_future(app(scope, self._inbox.get, self._receive))

    async def _receive(self, message: Any) -> None:
        if message["type"] == "websocket.close":  # as an ASGI server does
            self._inbox.put_nowait({"type": "websocket.disconnect", "code": message["code"]})
        self._received.put_nowait(dict(message))

    async def receive_message(self) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE):
            return await self._received.get()

    async def receive_event(self) -> SocketEvent:
        """Receive the next event and validate it."""
        message = await self.receive_message()
        assert message["type"] == "websocket.send", message
        event: SocketEvent = json.loads(message["text"])
        check_socket_event(event)
        return event

    def is_idle(self) -> bool:
        return self._received.empty()

    def send(self, text: str) -> None:
        self._inbox.put_nowait({"type": "websocket.receive", "text": text})

    def send_bytes(self, data: bytes) -> None:
        self._inbox.put_nowait({"type": "websocket.receive", "bytes": data})

    def send_create(self, **fields: Any) -> None:
        self.send(json.dumps({"type": "response.create", "model": "fake", "input": "hi", **fields}))

    async def receive_end(self) -> SocketEvent:
        """Receive events up to the final event of a response, or up to an error."""
        while (event := await self.receive_event())["type"] not in FINAL_EVENTS | {"error"}:
            pass
        return event

    async def create(self, **fields: Any) -> Any:
        """Create a response while no other one is running, and return it once it is completed."""
        self.send_create(**fields)
        event = await self.receive_end()
        assert event["type"] == "response.completed", event
        return event["response"]

    async def create_rejected(self, **fields: Any) -> SocketEvent:
        """Send a request that starts no response, and return its error event."""
        self.send_create(**fields)
        event = await self.receive_event()
        assert event["type"] == "error", event
        return event

    def disconnect(self) -> None:
        self._inbox.put_nowait({"type": "websocket.disconnect", "code": 1006})

    async def wait_closed(self) -> None:
        async with asyncio.timeout(DEADLINE):
            await self.task


@asynccontextmanager
async def open_websocket(
    app: Any, *headers: Header, path: str = "/v1/responses", host: Header = HOST
) -> AsyncIterator[WebSocketClient]:
    """Open a WebSocket, and disconnect at the end of the block."""
    client = WebSocketClient(app, socket_scope(path, (host, *headers)))
    accepted = await client.receive_message()
    assert accepted["type"] == "websocket.accept", accepted
    try:
        yield client
    finally:
        client.disconnect()
        await client.wait_closed()


async def fetch_rejection(app: App, *headers: Header, path: str = "/v1/responses", query: bytes = b"") -> AsgiResponse:
    """Return the plain HTTP response to a handshake that is rejected."""
    client = WebSocketClient(app, socket_scope(path, headers, query))
    start, body = await client.receive_message(), await client.receive_message()
    assert (start["type"], body["type"]) == ("websocket.http.response.start", "websocket.http.response.body"), start
    await client.wait_closed()
    return AsgiResponse(start["status"], start["headers"], body["body"], True)
