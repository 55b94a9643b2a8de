"""A request on a server that is not ours: the messages of ASGI, as a Line.

Whether its client has left is asked only about work that takes longer than a moment.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from types import TracebackType
from typing import Any

from antiphon.transport.http.channel import ClientGone, Header, repeated
from antiphon.transport.server.client_task import Attended

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_MOMENT = 0.05  # seconds


class AsgiLine(Attended):
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: bytes = scope.get("raw_path") or scope["path"].encode()
        self.query: bytes = scope.get("query_string", b"")
        self.fields: dict[bytes, bytes] = dict(scope["headers"])
        self.repeated = repeated(scope["headers"])
        self.more = True
        self._receive = receive
        self._send = send
        self._worker: asyncio.Task[None] | None = None
        self._cancelled: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._listening: asyncio.Task[None] | None = None

    async def read(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        self.more = message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece

    async def reply(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        await self.begin(status, headers)
        await self.end(body)

    def begin(self, status: int, headers: Sequence[Header]) -> Awaitable[None]:
        return self._send({"type": "http.response.start", "status": status, "headers": headers})

    def write(self, piece: bytes) -> Awaitable[None]:
        return self._send({"type": "http.response.body", "body": piece, "more_body": True})

    def end(self, piece: bytes = b"") -> Awaitable[None]:
        return self._send({"type": "http.response.body", "body": piece})

    def __enter__(self) -> None:
        self._worker = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(_MOMENT, self._listen)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        super().__exit__(kind, error, trace)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def ended(self) -> None:
        """After the reply: nobody listens any more."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])

    def _listen(self) -> None:
        """Once for all that is done for it."""
        if self._listening is None:
            self._listening = asyncio.get_running_loop().create_task(self._until_gone())
        elif self._listening.done():
            self._cancel()

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._cancel()
