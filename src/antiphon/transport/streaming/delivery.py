"""Delivers a source to its client: as a stream of events, or as one JSON body at the end. The source is always
released.

A stream begins with its first event, so that earlier failures are plain error responses. Only if that takes longer than
the keep-alive interval the stream begins without an event; a failure is then reported inside the stream. Transports
differ in the framing of events (`ClientStream`). The token path is the function that `ClientStream.open` returns: the
run calls it directly, without code of this module in between.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from msgspec import Struct

from antiphon.agent.model_call_run import Sink
from antiphon.errors import AntiphonError
from antiphon.transport.http.request import Request
from antiphon.transport.streaming import sse
from antiphon.transport.streaming.event_writer import EventEncoder, EventWriter, SseWriter
from antiphon.transport.streaming.legacy_events import LegacyFormat

_CHECKS_PER_INTERVAL = 4  # a keep-alive is at most a quarter of the interval late


class StreamFormat(Struct, frozen=True):
    """Server-sent events of an API: the encoder of its events, the bytes after the last event, and the encoder of
    keep-alives, which gets the last event, if any.
    """

    encode: EventEncoder[Any]
    keepalive: Callable[[Any], bytes]
    done: bytes = sse.DONE


RESPONSE_FORMAT = StreamFormat(sse.encode_events, sse.encode_keepalive)
DATA_FORMAT = StreamFormat(sse.encode_data, sse.encode_comment)  # of chat and completions


class DeliverySource(Protocol):
    """What is sent to a client: a run of its own, a run that others follow too, or a response that has ended."""

    @property
    def waits(self) -> bool:
        """Whether the source is waiting for an engine or another process."""

    def begin(self) -> Awaitable[None] | None:
        """Wait for the first event, if necessary. A failure before it is raised."""

    async def drive(self, emit: Sink[Any]) -> None:
        """Emit every event, in lists, up to the last one; this includes a failure that `begin` raised."""

    async def result(self) -> bytes:
        """Return the JSON body at the end. Raises the error if there was one."""

    def close(self) -> Awaitable[None] | None:
        """Stop reading. A run in the foreground that has no other reader is cancelled."""


class ClientStream(Protocol):
    """The events of one source in the framing of a transport."""

    @property
    def last(self) -> Any:
        """The last event that was emitted; None before the first."""

    @property
    def is_open(self) -> bool:
        """Whether the client has received anything."""

    async def open(self) -> Sink[Any]:
        """Begin the stream, unless it has begun. Returns the function that emits events."""

    async def send_keepalive(self) -> None: ...

    async def end(self) -> None:
        """End the stream, after the last event."""


class Delivery:
    """`ping_interval`: seconds between keep-alives. `legacy_format`: the format of events for older clients; None for
    the standard one.
    """

    def __init__(self, ping_interval: float, legacy_format: LegacyFormat | None = None) -> None:
        self._ping_interval = ping_interval
        self.legacy_format = legacy_format

    def make_response_format(self, request: Request, image_urls: Sequence[str] = (), after: int = -1) -> StreamFormat:
        """Return the format of a Responses stream; the arguments are those of `LegacyFormat.open_stream`."""
        if self.legacy_format is None:
            return RESPONSE_FORMAT
        legacy = self.legacy_format.open_stream(request, image_urls, after)
        return StreamFormat(legacy.encode, legacy.encode_keepalive)

    async def reply(
        self,
        request: Request,
        source: DeliverySource,
        ignored: Sequence[str] = (),
        stream_format: StreamFormat | None = None,
    ) -> None:
        """Reply to a request with a stream, or with one JSON body if there is no format. A disconnect cancels it.

        `ignored`: names of fields that were sent and have no effect.
        """
        request.ignored = ignored or request.ignored
        try:
            with request.channel:
                if stream_format is None:
                    await request.reply(200, await source.result())
                else:
                    await self._emit_all(source, SseStream(request, stream_format))
        finally:
            await _release(source)

    async def stream(self, source: DeliverySource, stream: ClientStream) -> None:
        """Send all events to a stream."""
        try:
            await self._emit_all(source, stream)
        finally:
            await _release(source)

    async def _emit_all(self, source: DeliverySource, stream: ClientStream) -> None:
        async with KeepAlive(source, stream, self._ping_interval):
            try:
                if (pending := source.begin()) is not None:
                    await pending
            except AntiphonError:
                if not stream.is_open:
                    raise
            await source.drive(await stream.open())
            await stream.end()


async def _release(source: DeliverySource) -> None:
    if (pending := source.close()) is not None:
        await pending


class SseStream:
    """A stream of server-sent events: the reply to one request."""

    def __init__(self, request: Request, stream_format: StreamFormat) -> None:
        self._request = request
        self._format = stream_format
        self._writer: EventWriter[Any] | None = None
        self._lock = asyncio.Lock()  # a keep-alive may begin the stream while the source does

    @property
    def last(self) -> Any:
        return None if self._writer is None else self._writer.last

    @property
    def is_open(self) -> bool:
        return self._writer is not None

    async def open(self) -> Sink[Any]:
        async with self._lock:
            if self._writer is None:
                await self._request.begin(200, sse.HEADERS)
                self._writer = SseWriter(self._request.channel, self._format.encode, self._format.done)
        return self._writer.emit

    async def send_keepalive(self) -> None:
        last = self.last
        await self.open()
        if self.last is last and (body := self._format.keepalive(last)):
            await self._request.write(body)

    async def end(self) -> None:
        assert self._writer is not None
        await self._writer.end()


class KeepAlive:
    """Sends keep-alives inside `async with`, while the source waits and there are no events.

    Until a keep-alive is due, a timer is all that exists for it. Pings of the WebSocket protocol (RFC 6455 §5.5.2)
    would not do: clients do not take them as a sign that their response is alive. `interval`: seconds; 0: none.
    """

    def __init__(self, source: DeliverySource, stream: ClientStream, interval: float) -> None:
        self._source = source
        self._stream = stream
        self._check_interval = interval / _CHECKS_PER_INTERVAL
        self._last_seen: Any = None  # the last event at the previous check
        self._idle_checks = 0  # successive checks without a new event
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._schedule_check()
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])

    def _schedule_check(self) -> None:
        if self._check_interval:
            self._timer = asyncio.get_running_loop().call_later(self._check_interval, self._check)

    def _check(self) -> None:
        last = self._stream.last
        self._idle_checks = self._idle_checks + 1 if last is self._last_seen and self._source.waits else 0
        self._last_seen = last
        if self._idle_checks < _CHECKS_PER_INTERVAL:
            self._schedule_check()
        else:
            self._idle_checks = 0
            self._sending = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        """Send a keep-alive, unless an event was sent since it became due."""
        if self._stream.last is self._last_seen:
            await self._stream.send_keepalive()
        self._schedule_check()
