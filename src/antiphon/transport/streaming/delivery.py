"""Delivers a source to its client: as a stream of events, or as one JSON body at the end. The source is always
released.

A stream begins with its first event, so that earlier failures are plain error responses. Only if that takes longer than
the keep-alive interval the stream begins without an event; a failure is then reported inside the stream. Transports
differ in the framing of events (`EventWriter`). The token path is the function that `EventWriter.open` returns: the
run calls it directly, without code of this module in between.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from antiphon.agent.model_call_run import Sink
from antiphon.errors import AntiphonError
from antiphon.transport.http.request import Request
from antiphon.transport.streaming.event_writer import RESPONSE_FORMAT, EventWriter, SseStream, StreamFormat
from antiphon.transport.streaming.legacy_events import LegacyFormat

_CHECKS_PER_INTERVAL = 4  # a keep-alive is at most a quarter of the interval late


class DeliverySource(Protocol):
    """The source of what a client is sent: its own run, a run that others follow too, or a response that has ended."""

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

    async def stream(self, source: DeliverySource, stream: EventWriter[Any]) -> None:
        """Send all events to a stream."""
        try:
            await self._emit_all(source, stream)
        finally:
            await _release(source)

    async def _emit_all(self, source: DeliverySource, stream: EventWriter[Any]) -> None:
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


class KeepAlive:
    """Sends keep-alives inside `async with`, while the source waits and there are no events.

    Until a keep-alive is due, a timer is all that exists for it. Pings of the WebSocket protocol (RFC 6455 §5.5.2)
    would not do: clients do not take them as a sign that their response is alive. `interval`: seconds; 0: none.
    """

    def __init__(self, source: DeliverySource, stream: EventWriter[Any], interval: float) -> None:
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
