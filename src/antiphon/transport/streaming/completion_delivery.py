"""From an exchange to the client: a stream in the words of its API, or one JSON body. The exchange is left in any case.

A stream begins when there is something to tell, so that what fails before is a plain error. Only if that takes longer
than silence may last it begins without, and is kept alive; then a failure is told inside of it.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from antiphon.agent.completion_run import Exchange
from antiphon.errors import AntiphonError
from antiphon.protocol.decoding.codec import encode
from antiphon.transport.http.request import Header, Request
from antiphon.transport.streaming import sse
from antiphon.transport.streaming.event_writer import Frames, Outlet, open_outlet
from antiphon.transport.streaming.keepalive import Listener


class Wording(Struct, frozen=True):
    """How an API says things in a stream: what makes bytes of what is told, what follows the last of it, and what
    breaks the silence (given what was told last, if anything was)."""

    frames: Frames[Any] = sse.data_frames
    done: bytes = sse.DONE
    keepalive: Callable[[Any], bytes] = sse.comment


UNNAMED = Wording()  # of chat and completions


class ExchangeDelivery:
    def __init__(self, ping_interval: float, wording: Wording = UNNAMED) -> None:
        self._ping_interval = ping_interval
        self._wording = wording

    async def stream(self, request: Request, exchange: Exchange, headers: Sequence[Header] = ()) -> None:
        try:
            async with Listener(request, exchange, self._ping_interval, self._wording.keepalive) as listener:
                listener.opens = opening = _Opening(request, self._wording, headers, listener)
                try:
                    await exchange.begin()
                except AntiphonError:
                    if not request.status:
                        raise
                outlet = await opening()
                await exchange.drive(outlet.tell)
                await outlet.end()
        finally:
            await exchange.leave()

    async def result(self, request: Request, exchange: Exchange, headers: Sequence[Header] = ()) -> None:
        try:
            with request.line:
                await request.reply(200, encode(await exchange.result()), headers)
        finally:
            await exchange.leave()


class _Opening:
    """Begins a stream once, for who comes first: the driver with something to tell, or the listener with nothing."""

    def __init__(self, request: Request, wording: Wording, headers: Sequence[Header], listener: Listener) -> None:
        self._request = request
        self._wording = wording
        self._headers = headers
        self._listener = listener
        self._once = asyncio.Lock()

    async def __call__(self) -> Outlet[Any]:
        async with self._once:
            if (outlet := self._listener.outlet) is None:
                await self._request.begin(200, (*sse.HEADERS, *self._headers))
                outlet = open_outlet(self._request.line, self._wording.frames, self._wording.done)
                self._listener.outlet = outlet
                self._listener.opens = None
        return outlet
