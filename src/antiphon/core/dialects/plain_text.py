"""A dialect for model calls of the server itself: the output as plain text, which is not sent to any client."""

from collections.abc import Iterable

from msgspec import Struct

from antiphon.core.deltas import Delta, Text
from antiphon.core.dialects.dialect import WireEvents
from antiphon.core.prompt import Chunk, FinishKind, TokenCounts
from antiphon.errors import AntiphonError


class PlainTextPiece(Struct, frozen=True):
    """A piece of text."""

    text: str


class PlainTextResult(Struct, frozen=True, kw_only=True):
    """The complete text and its token counts."""

    text: str
    counts: TokenCounts
    truncated: bool  # the token limit was reached


class PlainTextEmitter:
    """Collects text; reasoning, calls and refusals are ignored."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._counts = TokenCounts()
        self._finish: FinishKind = "stop"

    def begin(self) -> WireEvents:
        return []

    def note(self, chunk: Chunk, choice: int = 0) -> None:
        pass

    def feed(self, deltas: Iterable[Delta], choice: int = 0) -> WireEvents:
        return [PlainTextPiece(delta.text) for delta in deltas if type(delta) is Text]

    def end(self, finish: FinishKind, counts: TokenCounts, choice: int = 0) -> WireEvents:
        self._finish = finish
        return []

    def close(self, counts: TokenCounts) -> WireEvents:
        self._counts = counts
        return []

    def fail(self, error: AntiphonError) -> WireEvents:
        return []

    def fold_events(self, events: WireEvents) -> None:
        self._pieces += [event.text for event in events if isinstance(event, PlainTextPiece)]

    def result(self) -> PlainTextResult:
        return PlainTextResult(text="".join(self._pieces), counts=self._counts, truncated=self._finish == "length")
