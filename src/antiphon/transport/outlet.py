"""The way out for a stream's events: straight to the socket on our own server, by ASGI on any other.

On our own server what is told in one turn of the event loop goes out in one write when that turn is over, so nothing
is held back while anybody waits. A write of its own, ASGI's message and coroutine cost a token more than all the rest.
"""

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from antiphon.protocol.events import Event
from antiphon.transport.http import Send
from antiphon.transport.sse import DONE, frames

_MOST = 64  # lists of events that wait for the end of the turn; a reader who is slow is noticed only at a write


class Outlet(Protocol):
    last: Event | None  # that was told

    def tell(self, events: list[Event]) -> Awaitable[None] | None:
        """The token path. Gives what has to be awaited before the next events, if anything."""

    def end(self) -> Awaitable[None]:
        """After the last event."""


def open_outlet(send: Send) -> Outlet:
    """For a reply that has begun and is not over."""
    cycle = getattr(send, "__self__", None)
    if isinstance(cycle, RequestResponseCycle) and cycle.response_started and cycle.chunked_encoding:
        return _Socket(cycle, send)
    return _Asgi(send)


class _Asgi:
    def __init__(self, send: Send) -> None:
        self.last: Event | None = None
        self._send = send

    def tell(self, events: list[Event]) -> Awaitable[None]:
        self.last = events[-1]
        return self._send({"type": "http.response.body", "body": frames(events), "more_body": True})

    def end(self) -> Awaitable[None]:
        return self._send({"type": "http.response.body", "body": DONE})


class _Socket:
    """Does for events what uvicorn's `send` does for a piece of a body."""

    def __init__(self, cycle: RequestResponseCycle, send: Send) -> None:
        self.last: Event | None = None
        self._cycle = cycle
        self._send = send
        self._flow = cycle.flow
        self._loop = asyncio.get_running_loop()
        self._told: list[Event] = []
        self._lists = 0

    def tell(self, events: list[Event]) -> Awaitable[None] | None:
        if self._lists == 0:
            self._loop.call_soon(self._flush)
        self.last = events[-1]
        self._told += events
        self._lists += 1
        if self._lists == _MOST:
            self._flush()
        return self._flow.drain() if self._flow.write_paused else None

    def end(self) -> Awaitable[None]:
        told, self._told = self._told, []
        return self._send({"type": "http.response.body", "body": frames(told) + DONE if told else DONE})

    def _flush(self) -> None:
        told, self._told, self._lists = self._told, [], 0
        if told and not self._cycle.disconnected and not self._cycle.transport.is_closing():
            body = frames(told)
            self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
