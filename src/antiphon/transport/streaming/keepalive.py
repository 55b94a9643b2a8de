"""The client at the other end of a stream: is it still there, and has it heard nothing for long?

Silence is broken by a keep-alive. Until it has lasted nothing is made for that but a timer. A client that does not read
is hung up on by the server, and so is gone too.
"""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Protocol, Self

from antiphon.transport.http.request import Request
from antiphon.transport.streaming import sse
from antiphon.transport.streaming.event_writer import Outlet

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
        self._line = request.line
        self._source = source
        self._keepalive = keepalive
        self._pause = ping_interval / _LOOKS  # 0: no keep-alives
        self._heard: Any = None  # at the last look
        self._looks = 0  # that found nothing new
        self.outlet: Outlet[Any] | None = None  # of a stream, once it has begun; nothing is sent before its first event
        self.opens: Callable[[], Awaitable[object]] | None = None  # begins a stream whose first event takes long
        self._timer: asyncio.TimerHandle | None = None
        self._breaking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._line.__enter__()
        self._rest()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._breaking is not None:
            self._breaking.cancel()
            await asyncio.wait([self._breaking])
        self._line.__exit__(kind, error, trace)

    def _rest(self) -> None:
        """Until it is time to look again."""
        if self._pause:
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._look)

    def _look(self) -> None:
        last = None if self.outlet is None else self.outlet.last
        self._looks = self._looks + 1 if last is self._heard and self._source.waits else 0
        self._heard = last
        if self._looks < _LOOKS:
            self._rest()
        else:
            self._looks = 0
            self._breaking = asyncio.get_running_loop().create_task(self._break_silence())

    async def _break_silence(self) -> None:
        """Unless something was said since it was found to last."""
        if self.outlet is None and self.opens is not None:
            await self.opens()
        outlet = self.outlet
        if outlet is not None and outlet.last is self._heard and (body := self._keepalive(outlet.last)):
            unread = self._line.write(body)
            if unread is not None:
                await unread
        self._rest()
