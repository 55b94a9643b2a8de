"""One answer as it comes: what is read together has one time."""

from array import array
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from antiphon.cli.bench.figures import Answered
from antiphon.cli.bench.reading import Api
from antiphon.errors import EngineFailed


class Pulse:
    """Pieces of answers that came since the program began: for those who watch."""

    def __init__(self) -> None:
        self.pieces = 0


class Hearing:
    def __init__(self, api: Api, pulse: Pulse) -> None:
        self.reader = api.reader()
        self._gaps = array("d")
        self._pulse = pulse
        self._pieces = 0
        self._first = self._last = self._read = 0.0

    def feed(self, events: Sequence[Any]) -> None:
        pieces = self.reader.feed(events)
        self._read = now = perf_counter()
        if not pieces:
            return
        if not self._pieces:
            self._first = now
        else:
            self._gaps.append(now - self._last)
        self._last = now
        self._pieces += pieces
        self._pulse.pieces += pieces

    def answered(self, who: str, begun: float) -> Answered:
        """All of it has come. EngineFailed if that is not what was asked for."""
        reader = self.reader
        if reader.fault is not None:
            raise EngineFailed(f"{who} failed in the stream: {reader.fault}")
        if not reader.ended:
            raise EngineFailed(f"{who} stopped in the middle of its answer.")
        if not self._pieces:
            raise EngineFailed(f"{who} answered without a single token.")
        return Answered(
            begun=begun,
            first=self._first,
            last=self._last,
            ended=self._read,
            pieces=self._pieces,
            gaps=self._gaps,
            input_tokens=reader.input_tokens,
            output_tokens=reader.output_tokens,
        )
