"""Delivers a Source to the client: as a stream of events, or as one JSON body at the end. The source is always
released.

The token path is `EventWriter.emit`: the run calls it directly, without code of this module in between.
"""

from collections.abc import Sequence

from antiphon.service.runs.follow import ResponseSource
from antiphon.transport.http.channel import Header
from antiphon.transport.http.request import Request
from antiphon.transport.streaming import sse
from antiphon.transport.streaming.event_writer import open_event_writer
from antiphon.transport.streaming.keepalive import KeepAlive
from antiphon.transport.streaming.legacy_events import LegacyFormat, LegacyStream


class ResponseDelivery:
    """`legacy_format`: the format of streams for older clients; None for the standard one."""

    def __init__(self, ping_interval: float, legacy_format: LegacyFormat | None = None) -> None:
        self._ping_interval = ping_interval
        self.legacy_format = legacy_format

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
            with request.channel:
                await request.reply(200, await source.result(), headers)
        finally:
            source.close()
