"""Delivers a Source to the client: as a stream of events, or as one JSON body at the end. The source is always
released.

The token path is `EventWriter.emit`: the run calls it directly, without code of this module in between.

Concurrent requests for JSON go through the stages of their processing together, which uses the CPU caches better. The
code and data of a stage exceed the caches. If each request goes through all stages at once, every stage is loaded anew
for every request; if requests take turns at a stage, it is loaded for the first one and cached for the others. So a
request that is not alone yields for one iteration of the event loop between two stages.
"""

from collections.abc import Awaitable, Generator, Sequence
from types import TracebackType, coroutine
from typing import Self

from msgspec import Struct

from antiphon.service.runs.follow import ResponseSource
from antiphon.transport.http.channel import Header
from antiphon.transport.http.request import Request
from antiphon.transport.streaming import sse
from antiphon.transport.streaming.event_writer import open_event_writer
from antiphon.transport.streaming.keepalive import KeepAlive
from antiphon.transport.streaming.legacy_events import LegacyFormat, LegacyStream


class StageScheduler(Struct, eq=False):
    """Counts the requests that are inside `with scheduler:`."""

    _active: int = 0

    def __enter__(self) -> Self:
        self._active += 1
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._active -= 1

    def yield_turn(self) -> Awaitable[None] | None:
        """Return an awaitable to await between two stages; None if there are no other requests."""
        return _yield_once() if self._active > 1 else None


@coroutine
def _yield_once() -> Generator[None, None, None]:
    """Like `asyncio.sleep(0)`, at half its cost."""
    yield


class ResponseDelivery:
    """`legacy_format`: the format of streams for older clients; None for the standard one."""

    def __init__(self, ping_interval: float, legacy_format: LegacyFormat | None = None) -> None:
        self._ping_interval = ping_interval
        self.legacy_format = legacy_format
        self._stages = StageScheduler()

    async def stream(
        self,
        request: Request,
        source: ResponseSource,
        headers: Sequence[Header] = (),
        legacy: LegacyStream | None = None,
    ) -> None:
        encode, keepalive = (
            (sse.encode_events, sse.encode_keepalive) if legacy is None else (legacy.encode, legacy.encode_keepalive)
        )
        try:
            async with KeepAlive(request, source, self._ping_interval, keepalive) as keep_alive:
                await request.begin(200, (*sse.HEADERS, *headers))
                keep_alive.writer = writer = open_event_writer(request.channel, encode)
                await source.drive(writer.emit)
                await writer.end()
        finally:
            source.close()

    async def send_result(self, request: Request, source: ResponseSource, headers: Sequence[Header] = ()) -> None:
        try:
            with request.channel, self._stages as stages:
                if (turn := stages.yield_turn()) is not None:
                    await turn
                body = await source.result()
                if (turn := stages.yield_turn()) is not None:
                    await turn
                await request.reply(200, body, headers)
        finally:
            source.close()
