"""From a Source to the client: a stream of events, or one JSON body at the end. The source is left in any case.

The token path is the outlet's `tell`: nothing here comes between it and the run.
"""

from collections.abc import Sequence

from antiphon.service.runs.source import Source
from antiphon.transport.http.request import Header, Request
from antiphon.transport.streaming import sse
from antiphon.transport.streaming.event_writer import open_outlet
from antiphon.transport.streaming.keepalive import Listener
from antiphon.transport.streaming.legacy_events import Manner, Retold
from antiphon.transport.streaming.stage_scheduler import Company


class Delivery:
    """`manner`: how streams are told to older clients; None: as everybody knows them."""

    def __init__(self, ping_interval: float, manner: Manner | None = None) -> None:
        self._ping_interval = ping_interval
        self.manner = manner
        self._company = Company()

    async def stream(
        self, request: Request, source: Source, headers: Sequence[Header] = (), retold: Retold | None = None
    ) -> None:
        frames, keepalive = (sse.frames, sse.keepalive) if retold is None else (retold.frames, retold.keepalive)
        try:
            async with Listener(request, source, self._ping_interval, keepalive) as listener:
                await request.begin(200, (*sse.HEADERS, *headers))
                listener.outlet = outlet = open_outlet(request.line, frames)
                await source.drive(outlet.tell)
                await outlet.end()
        finally:
            source.leave()

    async def result(self, request: Request, source: Source, headers: Sequence[Header] = ()) -> None:
        try:
            with request.line, self._company as company:
                if (others := company.others()) is not None:
                    await others
                body = await source.result()
                if (others := company.others()) is not None:
                    await others
                await request.reply(200, body, headers)
        finally:
            source.leave()
