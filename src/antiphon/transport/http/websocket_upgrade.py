"""A WebSocket handshake request (RFC 6455 §4): rejected with a plain HTTP response, or accepted."""

from collections.abc import Sequence
from functools import partial

from antiphon.transport.http.channel import Header, HttpChannel, Receive, Scope, Send
from antiphon.transport.http.request import Request, build_request

_DENIAL_RESPONSE = "websocket.http.response"
_SWITCHING_PROTOCOLS = 101
_PROTOCOL_ERROR = 1002
# Browsers cannot set headers of a WebSocket: OpenAI's clients offer the key as a subprotocol there.
_KEY_PROTOCOL = b"openai-insecure-api-key."


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
        # a browser that offers subprotocols disconnects unless one of them is chosen; the key is not repeated
        offered = [one for one in list_protocols(self) if not one.startswith(_KEY_PROTOCOL)]
        subprotocol = offered[0].decode("latin-1") if offered else None
        await self.send({"type": "websocket.accept", "headers": self.reply_headers, "subprotocol": subprotocol})

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


def list_protocols(request: Request) -> list[bytes]:
    """Return the subprotocols that a client offers (RFC 6455 §4.1)."""
    offered = request.get_single_header(b"sec-websocket-protocol") or b""
    return [one.strip() for one in offered.split(b",") if one.strip()]


def read_protocol_key(request: Request) -> bytes:
    """Return the API key among the subprotocols, or nothing."""
    keys = [one[len(_KEY_PROTOCOL) :] for one in list_protocols(request) if one.startswith(_KEY_PROTOCOL)]
    return keys[0] if keys else b""


def upgrade_from_scope(scope: Scope, receive: Receive, send: Send) -> WebSocketUpgrade:
    answers = _DENIAL_RESPONSE in (scope.get("extensions") or {})
    return build_request(
        HttpChannel(scope, receive, send), partial(WebSocketUpgrade, receive=receive, send=send, answers=answers)
    )
