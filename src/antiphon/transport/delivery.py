"""From a Source to the client: a stream of events, or one JSON body at the end. The source is left in any case.

The token path is the outlet's `tell`: nothing here comes between it and the run.
"""

from collections.abc import Sequence

from antiphon.service.source import Source
from antiphon.transport import sse
from antiphon.transport.http import Header, Request
from antiphon.transport.listener import Listener
from antiphon.transport.outlet import open_outlet


class Delivery:
    def __init__(self, ping_interval: float) -> None:
        self._ping_interval = ping_interval

    async def stream(self, request: Request, source: Source, headers: Sequence[Header] = ()) -> None:
        try:
            async with Listener(request, source, self._ping_interval) as listener:
                await request.begin(200, (*sse.HEADERS, *headers))
                listener.outlet = outlet = open_outlet(request.send)
                await source.drive(outlet.tell)
                await outlet.end()
        finally:
            await source.leave()

    async def result(self, request: Request, source: Source, headers: Sequence[Header] = ()) -> None:
        try:
            async with Listener(request, source, self._ping_interval):
                await request.reply(200, await source.result(), headers)
        finally:
            await source.leave()
