"""The way out for a stream's events, of any API: straight to the socket on our own server, else by its Line.

On our own server what a task tells in one turn of the event loop goes out in one write when that turn is over, so
nothing is held back while anybody waits; what a callback tells goes out at once, since it told all there is. A write of
its own costs a token more than all the rest.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from antiphon.transport.http.channel import Line
from antiphon.transport.server.http_exchange import Cycle
from antiphon.transport.streaming import sse

E = TypeVar("E", bound=Struct)
Frames = Callable[[list[E]], bytes]

_MOST = 64  # lists of events that wait for the end of the turn; a reader who is slow is noticed only at a write


class Flow(Protocol):
    """Of bytes to a client."""

    @property
    def write_paused(self) -> bool:
        """Has it too much unread?"""

    async def drain(self) -> None:
        """Until it has not, or is gone."""


class Outlet(Protocol[E]):
    last: E | None  # that was told

    def tell(self, events: list[E]) -> Awaitable[None] | None:
        """The token path. Gives what has to be awaited before the next events, if anything."""

    async def end(self) -> None:
        """After the last event."""


def open_outlet(line: Line, frames: Frames[Any] = sse.frames, done: bytes = sse.DONE) -> Outlet[Any]:
    """For a reply that has begun and is not over. `frames` makes bytes of events, `done` follows the last of them."""
    if isinstance(line, Cycle) and line.chunked:
        return _Socket(line, frames, done)
    return _Told(line, frames, done)


class _Told(Generic[E]):
    """Each list by itself."""

    def __init__(self, line: Line, frames: Frames[E], done: bytes) -> None:
        self.last: E | None = None
        self._line = line
        self._frames = frames
        self._done = done

    def tell(self, events: list[E]) -> Awaitable[None] | None:
        self.last = events[-1]
        return self._line.write(self._frames(events))

    async def end(self) -> None:
        if (unread := self._line.end(self._done)) is not None:
            await unread


class Gathered(Generic[E]):
    """Tells what a task tells in one turn of the event loop in one `write`."""

    def __init__(self, flow: Flow) -> None:
        self.last: E | None = None
        self._flow = flow
        self._loop = asyncio.get_running_loop()
        self._told: list[E] = []
        self._lists = 0

    def tell(self, events: list[E]) -> Awaitable[None] | None:
        self.last = events[-1]
        if self._lists == 0 and asyncio.current_task(self._loop) is None:
            self.write(events)
        else:
            if self._lists == 0:
                self._loop.call_soon(self.flush)
            self._told += events
            self._lists += 1
            if self._lists == _MOST:
                self.flush()
        return self._flow.drain() if self._flow.write_paused else None

    def flush(self) -> None:
        if told := self.taken():
            self.write(told)

    def taken(self) -> list[E]:
        """What is not written yet."""
        told, self._told, self._lists = self._told, [], 0
        return told

    def write(self, events: list[E]) -> None:
        raise NotImplementedError


class _Socket(Gathered[E]):
    def __init__(self, cycle: Cycle, frames: Frames[E], done: bytes) -> None:
        super().__init__(cycle.carrier)
        self._cycle = cycle
        self._frames = frames
        self._done = done
        self._transport = cycle.carrier.transport
        cycle.follow(self.flush)

    async def end(self) -> None:
        told = self.taken()
        body = self._frames(told) + self._done if told else self._done
        if (unread := self._cycle.end(body)) is not None:
            await unread

    def write(self, events: list[E]) -> None:
        cycle, transport = self._cycle, self._transport
        if not cycle.gone and not transport.is_closing():
            body = self._frames(events)
            if not body:  # it would be taken for the end
                return
            chunk = b"%x\r\n%b\r\n" % (len(body), body)
            if cycle.head:
                cycle.put(chunk)
            else:
                transport.write(chunk)
