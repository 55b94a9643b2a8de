"""WebSocketUpgrade: acceptance and rejection of a handshake over ASGI."""

from typing import Any

import pytest

from antiphon.transport.http.websocket_upgrade import WebSocketUpgrade, upgrade_from_scope
from tests.support.asgi_client import HOST
from tests.transport.websocket.ws_client import DENIAL_EXTENSION, socket_scope

pytestmark = pytest.mark.anyio


class FakeAsgiServer:
    def __init__(self) -> None:
        self.received = 0
        self.sent: list[Any] = []

    async def receive(self) -> Any:
        self.received += 1
        return {"type": "websocket.connect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    def make_upgrade(self, **extensions: Any) -> WebSocketUpgrade:
        scope = {**socket_scope("/v1/responses", [HOST, (b"x-request-id", b"req_1")]), "extensions": extensions}
        return upgrade_from_scope(scope, self.receive, self.send)


async def test_an_upgrade_is_accepted_with_the_standard_headers() -> None:
    server = FakeAsgiServer()
    upgrade = server.make_upgrade()
    await upgrade.accept()
    assert (upgrade.status, server.received) == (101, 1)
    assert server.sent == [{"type": "websocket.accept", "headers": [(b"x-request-id", b"req_1")], "subprotocol": None}]


@pytest.mark.shows("F.8", "F.9")
async def test_an_upgrade_is_rejected_with_a_plain_http_response() -> None:
    server = FakeAsgiServer()
    upgrade = server.make_upgrade(**DENIAL_EXTENSION)
    await upgrade.reply(503, b'{"error":{}}', [(b"retry-after", b"5")])
    start, body = server.sent
    assert (upgrade.status, server.received) == (503, 1)
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 503)
    headers = dict(start["headers"])
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"content-length"] == b"12"
    assert headers[b"retry-after"] == b"5"
    assert headers[b"x-request-id"] == b"req_1"
    assert body == {"type": "websocket.http.response.body", "body": b'{"error":{}}'}


async def test_a_server_without_the_denial_extension_closes_the_websocket() -> None:
    server = FakeAsgiServer()
    await server.make_upgrade().reply(403, b"{}")
    assert server.sent == [{"type": "websocket.close", "code": 1002}]
