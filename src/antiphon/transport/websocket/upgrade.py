"""A request for a WebSocket, as the edge sees it: refused by a plain HTTP answer, or accepted."""

from collections.abc import Sequence

from antiphon.transport.asgi import AsgiLine, Receive, Scope, Send
from antiphon.transport.http import WEBSOCKET, Header, Request

_ANSWERS = "websocket.http.response"
_SWITCHING = 101
_PROTOCOL_ERROR = 1002


class Upgrade(Request):
    __slots__ = ("_answers", "_asked", "receive", "send")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["method"] = WEBSOCKET
        super().__init__(AsgiLine(scope, receive, send))
        self.receive = receive
        self.send = send
        self._answers = _ANSWERS in scope.get("extensions", {})
        self._asked = False

    async def accept(self) -> None:
        await self._ask()
        self.status = _SWITCHING
        self.tell_limits()
        await self.send({"type": "websocket.accept", "headers": self.reply_headers})

    async def reply(self, status: int, body: bytes, headers: Sequence[Header] = ()) -> None:
        length = (b"content-length", b"%d" % len(body))
        await self.begin(status, ((b"content-type", b"application/json"), length, *headers))
        if self._answers:
            await self.send({"type": f"{_ANSWERS}.body", "body": body})

    async def begin(self, status: int, headers: Sequence[Header]) -> None:
        await self._ask()
        whole = self._head(status, headers)
        if self._answers:
            await self.send({"type": f"{_ANSWERS}.start", "status": status, "headers": whole})
        else:
            await self.send({"type": "websocket.close", "code": _PROTOCOL_ERROR})

    async def _ask(self) -> None:
        """The first message says that somebody wants to connect."""
        if not self._asked:
            self._asked = True
            await self.receive()
