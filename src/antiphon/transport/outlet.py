"""The way out for a stream's events, of any API: straight to the socket on our own server, by ASGI on any other.

On our own server what a task tells in one turn of the event loop goes out in one write when that turn is over, so
nothing is held back while anybody waits; what a callback tells goes out at once, since it told all there is. A write of
its own, ASGI's message and coroutine cost a token more than all the rest.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from antiphon.transport import sse
from antiphon.transport.http import Send
from antiphon.transport.outbox import Outbox

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

    def end(self) -> Awaitable[None]:
        """After the last event."""


def open_outlet(send: Send, frames: Frames[Any] = sse.frames, done: bytes = sse.DONE) -> Outlet[Any]:
    """For a reply that has begun and is not over. `frames` makes bytes of events, `done` follows the last of them."""
    cycle = getattr(send, "__self__", None)
    if isinstance(cycle, RequestResponseCycle) and cycle.response_started and cycle.chunked_encoding:
        return _Socket(cycle, send, frames, done)
    return _Asgi(send, frames, done)


class _Asgi(Generic[E]):
    def __init__(self, send: Send, frames: Frames[E], done: bytes) -> None:
        self.last: E | None = None
        self._send = send
        self._frames = frames
        self._done = done

    def tell(self, events: list[E]) -> Awaitable[None]:
        self.last = events[-1]
        return self._send({"type": "http.response.body", "body": self._frames(events), "more_body": True})

    def end(self) -> Awaitable[None]:
        return self._send({"type": "http.response.body", "body": self._done})


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
    """Does for events what uvicorn's `send` does for a piece of a body."""

    def __init__(self, cycle: RequestResponseCycle, send: Send, frames: Frames[E], done: bytes) -> None:
        super().__init__(cycle.flow)
        self._cycle = cycle
        self._send = send
        self._frames = frames
        self._done = done
        self._transport: asyncio.Transport | Outbox = cycle.transport

    def end(self) -> Awaitable[None]:
        told = self.taken()
        body = self._frames(told) + self._done if told else self._done
        return self._send({"type": "http.response.body", "body": body})

    def write(self, events: list[E]) -> None:
        transport = self._transport
        if not self._cycle.disconnected and not transport.is_closing():
            body = self._frames(events)
            if not body:  # it would be taken for the end
                return
            transport.write(b"%x\r\n%b\r\n" % (len(body), body))
            if isinstance(transport, Outbox):  # the head is out: from now on there is nothing to be held back
                self._transport = transport.wire
