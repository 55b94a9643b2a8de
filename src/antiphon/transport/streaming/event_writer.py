"""Writes the events of a stream, for any API, on any server.

With the direct extension of the server, events that a task emits in one iteration of the event loop go out in one write
at its end, so nothing is held back while the loop waits. Events from a callback are written immediately, since a
callback emits all there is. One write per token would cost more than everything else that is done for it. Without the
extension, each list of events is one message of ASGI.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from msgspec import Struct

from antiphon.transport.http.channel import DirectBody, FlowControl, HttpChannel
from antiphon.transport.streaming import sse

E = TypeVar("E", bound=Struct)
EventEncoder = Callable[[list[E]], bytes]

# lists of events that are collected before they are written; a slow reader is only noticed at a write
_MAX_BATCHES = 64


class EventWriter(Generic[E]):
    """Writes the events of one stream. Subclasses encode them.

    `flow`: the flow control of the direct extension; None without it.
    """

    def __init__(self, flow: FlowControl | None) -> None:
        self.last: E | None = None  # the last event that was emitted
        self._flow = flow
        self._pending: list[E] = []
        self._batches = 0

    def emit(self, events: list[E]) -> Awaitable[None] | None:
        """Emit events: the token path. Returns an awaitable if the caller has to wait before it emits more."""
        self.last = events[-1]
        flow = self._flow
        if flow is None:
            return self.send(events)
        if self._batches == 0 and asyncio.current_task() is None:
            self.write(events)
        else:
            if self._batches == 0:
                asyncio.get_running_loop().call_soon(self.flush)
            self._pending += events
            self._batches += 1
            if self._batches == _MAX_BATCHES:
                self.flush()
        return flow.drain() if flow.write_paused else None

    def flush(self) -> None:
        if events := self.take_pending():
            self.write(events)

    def take_pending(self) -> list[E]:
        """Return the events that are not written yet, and forget them."""
        events, self._pending, self._batches = self._pending, [], 0
        return events

    def write(self, events: list[E]) -> None:
        """Write events with the direct extension."""
        raise NotImplementedError

    def send(self, events: list[E]) -> Awaitable[None]:
        """Send events as messages of ASGI."""
        raise NotImplementedError

    async def end(self) -> None:
        """End the stream, after the last event."""
        raise NotImplementedError


class SseWriter(EventWriter[Any]):
    """Writes server-sent events into a reply that has begun.

    `encode` turns events into bytes, perhaps none; `done` follows the last of them.
    """

    def __init__(self, channel: HttpChannel, encode: EventEncoder[Any] = sse.encode_events, done: bytes = sse.DONE):
        super().__init__(channel.direct)
        self._channel = channel
        self._direct: DirectBody = channel.direct
        self._encode = encode
        self._done = done

    def write(self, events: list[Any]) -> None:
        self._direct.write(self._encode(events))

    async def send(self, events: list[Any]) -> None:
        if (pending := self._channel.write(self._encode(events))) is not None:
            await pending

    async def end(self) -> None:
        events = self.take_pending()
        await self._channel.end(self._encode(events) + self._done if events else self._done)
