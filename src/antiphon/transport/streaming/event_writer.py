"""Writes the events of a stream, for any API: directly to the socket on our own server, else through the HttpChannel.

On our own server, events that a task emits in one iteration of the event loop go out in one write at its end, so
nothing is held back while the loop waits. Events from a callback are written immediately, since a callback emits all
there is. One write per token would cost more than everything else that is done for it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from antiphon.transport.http.channel import HttpChannel
from antiphon.transport.server.http_exchange import HttpExchange
from antiphon.transport.streaming import sse

E = TypeVar("E", bound=Struct)
EventEncoder = Callable[[list[E]], bytes]

_MAX_BATCHES = (
    64  # lists of events that are collected before they are written; a slow reader is only noticed at a write
)


class FlowControl(Protocol):
    """Flow control of the bytes to a client."""

    @property
    def write_paused(self) -> bool:
        """Whether the client has too much unread data."""

    async def drain(self) -> None:
        """Wait until the client has read enough, or is gone."""


class EventWriter(Protocol[E]):
    """Writes the events of one stream."""

    last: E | None  # the last event that was emitted

    def emit(self, events: list[E]) -> Awaitable[None] | None:
        """Emit events: the token path. Returns an awaitable if the caller has to wait before it emits more."""

    async def end(self) -> None:
        """End the stream, after the last event."""


def open_event_writer(
    channel: HttpChannel, encode: EventEncoder[Any] = sse.encode_events, done: bytes = sse.DONE
) -> EventWriter[Any]:
    """Make a writer for a reply that has begun. `encode` turns events into bytes, `done` follows the last of them."""
    if isinstance(channel, HttpExchange) and channel.chunked:
        return _SocketWriter(channel, encode, done)
    return _ChannelWriter(channel, encode, done)


class _ChannelWriter(Generic[E]):
    """Writes each list of events by itself."""

    def __init__(self, channel: HttpChannel, encode: EventEncoder[E], done: bytes) -> None:
        self.last: E | None = None
        self._channel = channel
        self._encode = encode
        self._done = done

    def emit(self, events: list[E]) -> Awaitable[None] | None:
        self.last = events[-1]
        return self._channel.write(self._encode(events))

    async def end(self) -> None:
        if (unread := self._channel.end(self._done)) is not None:
            await unread


class BatchingWriter(Generic[E]):
    """Collects the events that a task emits in one iteration of the event loop into one `write`."""

    def __init__(self, flow: FlowControl) -> None:
        self.last: E | None = None
        self._flow = flow
        self._loop = asyncio.get_running_loop()
        self._pending: list[E] = []
        self._batches = 0

    def emit(self, events: list[E]) -> Awaitable[None] | None:
        self.last = events[-1]
        if self._batches == 0 and asyncio.current_task(self._loop) is None:
            self.write(events)
        else:
            if self._batches == 0:
                self._loop.call_soon(self.flush)
            self._pending += events
            self._batches += 1
            if self._batches == _MAX_BATCHES:
                self.flush()
        return self._flow.drain() if self._flow.write_paused else None

    def flush(self) -> None:
        if events := self.take_pending():
            self.write(events)

    def take_pending(self) -> list[E]:
        """Return the events that are not written yet, and forget them."""
        events, self._pending, self._batches = self._pending, [], 0
        return events

    def write(self, events: list[E]) -> None:
        raise NotImplementedError


class _SocketWriter(BatchingWriter[E]):
    """Writes chunks (RFC 9112 §7.1) to the socket of our own server."""

    def __init__(self, exchange: HttpExchange, encode: EventEncoder[E], done: bytes) -> None:
        super().__init__(exchange.connection)
        self._exchange = exchange
        self._encode = encode
        self._done = done
        self._transport = exchange.connection.transport
        exchange.call_before_head(self.flush)

    async def end(self) -> None:
        events = self.take_pending()
        body = self._encode(events) + self._done if events else self._done
        if (unread := self._exchange.end(body)) is not None:
            await unread

    def write(self, events: list[E]) -> None:
        exchange, transport = self._exchange, self._transport
        if not exchange.gone and not transport.is_closing():
            body = self._encode(events)
            if not body:  # an empty chunk would end the body
                return
            chunk = b"%x\r\n%b\r\n" % (len(body), body)
            if exchange.head:
                exchange.write_raw(chunk)
            else:
                transport.write(chunk)
