"""The rest of an answer, read and handed on in the callback that brought it. Where it stops, its reader says why."""

from collections.abc import Awaitable
from typing import Any

from antiphon.engines.base import Flow, Take
from antiphon.engines.client import EventStream
from antiphon.engines.http.ways import Reader
from antiphon.errors import EngineFailed

LAST_SECONDS = 5.0  # between the end of an answer and its usage


class AnswerFlow(Flow):
    def __init__(self, stream: EventStream[Any], reader: Reader) -> None:
        self._stream = stream
        self._reader = reader

    async def pour(self, take: Take) -> None:
        stream, reader = self._stream, self._reader

        def taken(events: list[Any]) -> Awaitable[None] | None:
            try:
                chunks = reader.feed(events)
            except EngineFailed as error:
                chunks, reader.fault = [], error
            if reader.ended or reader.fault is not None:
                stream.halt()
            elif reader.finished:
                stream.hurry(LAST_SECONDS)
            return take(chunks) if chunks else None

        await stream.pour(taken)
