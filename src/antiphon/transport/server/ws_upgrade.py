"""A WebSocket handshake request (RFC 6455 §4): rejected with a plain HTTP response, or accepted.

The application decides on a WebSocketUpgrade. A request that is not a valid handshake does not reach it:
HandshakeProtocol rejects that one on our own server.
"""

from collections.abc import Sequence
from functools import partial

from websockets.http11 import Response
from websockets.server import ServerProtocol

from antiphon.errors import BadRequest
from antiphon.transport.http import error_responses
from antiphon.transport.http.channel import Header
from antiphon.transport.http.request import WEBSOCKET, Request, build_request
from antiphon.transport.server.asgi_channel import AsgiChannel, Receive, Scope, Send

_DENIAL_RESPONSE = "websocket.http.response"
_SWITCHING_PROTOCOLS = 101
_PROTOCOL_ERROR = 1002


class HandshakeProtocol(ServerProtocol):
    """The protocol of the websockets library, whose rejections have the standard error format."""

    def reject(self, status: int, text: str) -> Response:
        """Reject the handshake in the standard error format."""
        response = super().reject(status, text)
        response.body = error_responses.render_body(BadRequest(text.strip()))
        for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(response.body)))):
            del response.headers[name]
            response.headers[name] = value
        return response


class WebSocketUpgrade(Request, eq=False, kw_only=True):
    """The handshake request, over ASGI. `reply` and `begin` reject it, `accept` opens the WebSocket."""

    receive: Receive
    send: Send
    answers: bool  # whether the server has the denial response extension of ASGI; without it the socket is closed
    _connect_received: bool = False

    async def accept(self) -> None:
        await self._receive_connect()
        self.status = _SWITCHING_PROTOCOLS
        self.add_limit_headers()
        await self.send({"type": "websocket.accept", "headers": self.reply_headers})

    async def reply(self, status: int, body: bytes, headers: Sequence[Header] = ()) -> None:
        length = (b"content-length", b"%d" % len(body))
        await self.begin(status, ((b"content-type", b"application/json"), length, *headers))
        if self.answers:
            await self.send({"type": f"{_DENIAL_RESPONSE}.body", "body": body})

    async def begin(self, status: int, headers: Sequence[Header]) -> None:
        await self._receive_connect()
        head = self._build_head(status, headers)
        if self.answers:
            await self.send({"type": f"{_DENIAL_RESPONSE}.start", "status": status, "headers": head})
        else:
            await self.send({"type": "websocket.close", "code": _PROTOCOL_ERROR})

    async def _receive_connect(self) -> None:
        """Consume `websocket.connect`, which ASGI delivers first."""
        if not self._connect_received:
            self._connect_received = True
            await self.receive()


def upgrade_from_scope(scope: Scope, receive: Receive, send: Send) -> WebSocketUpgrade:
    scope["method"] = WEBSOCKET
    answers = _DENIAL_RESPONSE in scope.get("extensions", {})
    return build_request(
        AsgiChannel(scope, receive, send), partial(WebSocketUpgrade, receive=receive, send=send, answers=answers)
    )
