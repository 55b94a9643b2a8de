"""The client at the other end of a response: is it still there, and has it heard nothing for long?

A client that has gone cancels the driver, which then sees ClientGone. Silence is broken by a keep-alive.
Both are one task that starts only for work that takes longer than a moment, so that short requests do
not pay for it. A client that does not read is hung up on by the server, and so is gone too.
"""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Protocol, Self

from antiphon.transport import sse
from antiphon.transport.http import ClientGone, Request
from antiphon.transport.outlet import Outlet

_MOMENT = 0.05  # seconds
_LOOKS = 4  # in the time that silence may last; so it is broken at most a quarter of that too late


class Waiting(Protocol):
    @property
    def waits(self) -> bool:
        """Is it somebody else, an engine or another process, that everybody waits for just now?"""


class Listener:
    """`keepalive` makes bytes that break the silence after the event that was told last."""

    def __init__(
        self,
        request: Request,
        source: Waiting,
        ping_interval: float,
        keepalive: Callable[[Any], bytes] = sse.keepalive,
    ) -> None:
        self._receive = request.receive
        self._send = request.send
        self._source = source
        self._keepalive = keepalive
        self._pause = ping_interval / _LOOKS or None  # 0: no keep-alives
        self.outlet: Outlet[Any] | None = None  # of a stream, once it has begun; nothing is sent before its first event
        self.opens: Callable[[], Awaitable[object]] | None = None  # begins a stream whose first event takes long
        self._gone = False
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._driver = task
        self._timer = task.get_loop().call_later(_MOMENT, self._start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        if self._gone and self._driver.uncancel() == 0 and kind is asyncio.CancelledError:
            raise ClientGone from error

    def _start(self) -> None:
        self._watch = asyncio.get_running_loop().create_task(self._attend())

    async def _attend(self) -> None:
        heard, looks = None, 0
        while not await self._has_left():
            last = None if self.outlet is None else self.outlet.last
            looks = looks + 1 if last is heard and self._source.waits else 0
            heard = last
            if looks >= _LOOKS:
                looks = 0
                await self._break_silence()
        self._gone = True
        self._driver.cancel()

    async def _break_silence(self) -> None:
        if self.outlet is None and self.opens is not None:
            await self.opens()
        if self.outlet is not None and (body := self._keepalive(self.outlet.last)):
            await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def _has_left(self) -> bool:
        """True when the client is gone, False when it is time to look whether it has waited long."""
        try:
            async with asyncio.timeout(self._pause):
                while (await self._receive())["type"] != "http.disconnect":
                    pass
        except TimeoutError:
            return False
        return True
