"""Doubles for the delivery of streams: a source that does what a test scripts, and a stream that records."""

import asyncio
from collections.abc import Awaitable
from typing import Any

from antiphon.agent.model_call_run import Sink
from antiphon.errors import AntiphonError
from antiphon.protocol.types.events import Event, OutputTextDelta
from antiphon.transport.streaming.event_writer import EventWriter


def make_delta() -> Event:
    return OutputTextDelta(item_id="msg_1", output_index=0, content_index=0, delta="a")


class RecordingStream(EventWriter[Any]):
    """A stream that records events and keep-alives."""

    def __init__(self, last: Event | None = None, is_open: bool = True) -> None:
        super().__init__(None)
        self.last = last
        self.is_open = is_open
        self.ended = False
        self.events: list[Any] = []
        self.keepalives: asyncio.Queue[Event | None] = asyncio.Queue()

    async def open(self) -> Sink[Any]:
        self.is_open = True
        return self.events.extend

    async def send_keepalive(self) -> None:
        self.keepalives.put_nowait(self.last)

    async def end(self) -> None:
        self.ended = True


class ScriptedSource:
    """A source with these events, or with an error before the first. `stream`: gets a new event at every poll."""

    def __init__(
        self,
        *events: Any,
        error: AntiphonError | None = None,
        waits: bool = False,
        stream: RecordingStream | None = None,
    ) -> None:
        self._events = [*events]
        self._error = error
        self._waits = waits
        self._stream = stream
        self.polls: asyncio.Queue[None] = asyncio.Queue()
        self.closed = 0

    @property
    def waits(self) -> bool:
        self.polls.put_nowait(None)
        if self._stream is not None:
            self._stream.last = make_delta()
        return self._waits

    async def wait_for_polls(self, times: int) -> None:
        async with asyncio.timeout(30):
            for _ in range(times):
                await self.polls.get()

    def begin(self) -> Awaitable[None] | None:
        if self._error is not None:
            raise self._error
        return None

    async def drive(self, emit: Sink[Any]) -> None:
        if (pending := emit(self._events if self._error is None else [self._error])) is not None:
            await pending

    async def result(self) -> bytes:
        return b""

    def close(self) -> None:
        self.closed += 1
