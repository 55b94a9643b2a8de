"""Delivers a CompletionRun to the client: as a stream in the format of its API, or as one JSON body. The run is always
released.

A stream begins with its first event, so that earlier failures are plain error responses. Only if that takes longer than
the keep-alive interval the stream begins without an event; a failure is then reported inside the stream.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from antiphon.agent.completion_run import CompletionRun
from antiphon.errors import AntiphonError
from antiphon.protocol.decoding.codec import encode
from antiphon.transport.http.channel import Header
from antiphon.transport.http.request import Request
from antiphon.transport.streaming import sse
from antiphon.transport.streaming.event_writer import EventEncoder, EventWriter, open_event_writer
from antiphon.transport.streaming.keepalive import KeepAlive


class StreamFormat(Struct, frozen=True):
    """Stream format of an API: the encoder of its events, the bytes after the last event, and the encoder of
    keep-alives, which gets the last event, if any.
    """

    encode: EventEncoder[Any] = sse.encode_data
    done: bytes = sse.DONE
    keepalive: Callable[[Any], bytes] = sse.encode_comment


DATA_ONLY = StreamFormat()  # for chat and completions


class CompletionDelivery:
    """Delivers runs in the stream format of one API."""

    def __init__(self, ping_interval: float, stream_format: StreamFormat = DATA_ONLY) -> None:
        self._ping_interval = ping_interval
        self._stream_format = stream_format

    async def stream(self, request: Request, run: CompletionRun, headers: Sequence[Header] = ()) -> None:
        try:
            async with KeepAlive(request, run, self._ping_interval, self._stream_format.keepalive) as keep_alive:
                keep_alive.open_stream = open_stream = _StreamOpener(request, self._stream_format, headers, keep_alive)
                try:
                    await run.begin()
                except AntiphonError:
                    if not request.status:
                        raise
                writer = await open_stream()
                await run.drive(writer.emit)
                await writer.end()
        finally:
            await run.close()

    async def send_result(self, request: Request, run: CompletionRun, headers: Sequence[Header] = ()) -> None:
        try:
            with request.channel:
                await request.reply(200, encode(await run.result()), headers)
        finally:
            await run.close()


class _StreamOpener:
    """Begins a stream once: for the run when it has its first event, or for KeepAlive when an interval passes without
    one.
    """

    def __init__(
        self, request: Request, stream_format: StreamFormat, headers: Sequence[Header], keep_alive: KeepAlive
    ) -> None:
        self._request = request
        self._stream_format = stream_format
        self._headers = headers
        self._keep_alive = keep_alive
        self._lock = asyncio.Lock()

    async def __call__(self) -> EventWriter[Any]:
        async with self._lock:
            if (writer := self._keep_alive.writer) is None:
                await self._request.begin(200, (*sse.HEADERS, *self._headers))
                writer = open_event_writer(self._request.channel, self._stream_format.encode, self._stream_format.done)
                self._keep_alive.writer = writer
                self._keep_alive.open_stream = None
        return writer
