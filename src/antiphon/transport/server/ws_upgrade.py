"""A request for a WebSocket, as the edge sees it: refused by a plain HTTP answer, or accepted."""

from collections.abc import Sequence
from functools import partial

from antiphon.transport.http.request import WEBSOCKET, Header, Request, received
from antiphon.transport.server.asgi_channel import AsgiLine, Receive, Scope, Send

_ANSWERS = "websocket.http.response"
_SWITCHING = 101
_PROTOCOL_ERROR = 1002


class Upgrade(Request, eq=False, kw_only=True):
    receive: Receive
    send: Send
    answers: bool  # is the server able to send a reply in place of the WebSocket?
    _asked: bool = False

    async def accept(self) -> None:
        await self._ask()
        self.status = _SWITCHING
        self.tell_limits()
        await self.send({"type": "websocket.accept", "headers": self.reply_headers})

    async def reply(self, status: int, body: bytes, headers: Sequence[Header] = ()) -> None:
        length = (b"content-length", b"%d" % len(body))
        await self.begin(status, ((b"content-type", b"application/json"), length, *headers))
        if self.answers:
            await self.send({"type": f"{_ANSWERS}.body", "body": body})

    async def begin(self, status: int, headers: Sequence[Header]) -> None:
        await self._ask()
        whole = self._head(status, headers)
        if self.answers:
            await self.send({"type": f"{_ANSWERS}.start", "status": status, "headers": whole})
        else:
            await self.send({"type": "websocket.close", "code": _PROTOCOL_ERROR})

    async def _ask(self) -> None:
        """The first message says that somebody wants to connect."""
        if not self._asked:
            self._asked = True
            await self.receive()


def asked_upgrade(scope: Scope, receive: Receive, send: Send) -> Upgrade:
    scope["method"] = WEBSOCKET
    answers = _ANSWERS in scope.get("extensions", {})
    return received(AsgiLine(scope, receive, send), partial(Upgrade, receive=receive, send=send, answers=answers))
