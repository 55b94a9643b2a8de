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

from antiphon.agent.model_call_run import Sink
from antiphon.transport.http.channel import DirectBody, FlowControl
from antiphon.transport.http.request import Request
from antiphon.transport.streaming import sse

E = TypeVar("E", bound=Struct)
EventEncoder = Callable[[list[E]], bytes]

# lists of events that are collected before they are written; a slow reader is only noticed at a write
_MAX_BATCHES = 64


class StreamFormat(Struct, frozen=True):
    """Server-sent events of an API: the encoder of its events, the bytes after the last event, and the encoder of
    keep-alives, which gets the last event, if any.
    """

    encode: EventEncoder[Any]
    keepalive: Callable[[Any], bytes]
    done: bytes = sse.DONE


RESPONSE_FORMAT = StreamFormat(sse.encode_events, sse.encode_keepalive)
DATA_FORMAT = StreamFormat(sse.encode_data, sse.encode_comment)  # of chat and completions


class EventWriter(Generic[E]):
    """The events of one source in the framing of a transport. Subclasses encode them.

    `flow`: the flow control of the direct extension; None without it.
    """

    is_open = True  # whether the client has received anything

    def __init__(self, flow: FlowControl | None) -> None:
        self.last: E | None = None  # the last event that was emitted
        self._flow = flow
        self._loop: asyncio.AbstractEventLoop | None = None  # once a task has emitted events
        self._pending: list[E] = []
        self._batches = 0

    async def open(self) -> Sink[E]:
        """Begin the stream, unless it has begun. Returns the function that emits events."""
        return self.emit

    def emit(self, events: list[E]) -> Awaitable[None] | None:
        """Emit events: the token path. Returns an awaitable if the caller has to wait before it emits more."""
        self.last = events[-1]
        flow = self._flow
        if flow is None:
            return self.send(events)
        if self._batches == 0 and asyncio.current_task(self._loop) is None:
            self.write(events)
        else:
            if self._batches == 0:
                self._loop = asyncio.get_running_loop()
                self._loop.call_soon(self.flush)
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

    async def send_keepalive(self) -> None:
        raise NotImplementedError

    async def end(self) -> None:
        """End the stream, after the last event."""
        raise NotImplementedError


class SseStream(EventWriter[Any]):
    """A stream of server-sent events: the reply to one request."""

    def __init__(self, request: Request, stream_format: StreamFormat) -> None:
        super().__init__(request.channel.direct)
        self.is_open = False
        self._request = request
        self._direct: DirectBody = request.channel.direct
        self._format = stream_format
        self._encode = stream_format.encode
        self._lock = asyncio.Lock()  # a keep-alive may begin the stream while the source does

    async def open(self) -> Sink[Any]:
        async with self._lock:
            if not self.is_open:
                await self._request.begin(200, sse.HEADERS)
                self.is_open = True
        return self.emit

    def write(self, events: list[Any]) -> None:
        self._direct.write(self._encode(events))

    async def send(self, events: list[Any]) -> None:
        await self._request.write(self._encode(events))

    async def send_keepalive(self) -> None:
        last = self.last
        await self.open()
        if self.last is last and (body := self._format.keepalive(last)):
            await self._request.write(body)

    async def end(self) -> None:
        events, done = self.take_pending(), self._format.done
        await self._request.channel.end(self._encode(events) + done if events else done)
