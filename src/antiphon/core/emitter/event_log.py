"""The log of a response, from which an Emitter can produce the same events again at any time and in any process.

    opening Response ── RunStarted ── Delta* ── RunEnded

`RunStarted` stands for `response.in_progress`; the events before it need no entry. An entry holds everything its events
need beyond the opening Response: ids are generated again in the same order, sequence numbers are counted.

Long stretches of a log are folded: `FoldedDeltas` holds the text of many deltas of one kind and the lengths of the
pieces. It stands for as many entries as it was made of and takes a tenth of their memory. The log is kept while the
response runs, and most of it is one small list per token.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from operator import attrgetter
from typing import overload

from msgspec import Struct

from antiphon.core.deltas import Delta, ReasoningDelta, Text
from antiphon.protocol.types.response import IncompleteReason, ResponseModeration, ResponseStatus, Usage


class RunStarted(Struct, frozen=True, array_like=True, tag="began"):
    """The request was sent to the engine."""


class LoggedError(Struct, frozen=True, kw_only=True):
    """An error as clients received it."""

    type: str
    code: str | None
    message: str
    param: str | None = None
    retry_after: float | None = None


class RunEnded(Struct, frozen=True, kw_only=True, array_like=True, tag="ended"):
    """The end of the response, with its time in Unix seconds (`at`)."""

    status: ResponseStatus
    reason: IncompleteReason | None = None
    fault: LoggedError | None = None
    usage: Usage | None = None
    at: int
    allow_empty: bool = False  # a response without output is valid: no empty message is added
    moderation: ResponseModeration | None = None


LogEntry = RunStarted | Delta | RunEnded

FOLD_BATCH = 64  # lists of a log that are folded together

_text = attrgetter("text")
_logprobs = attrgetter("logprobs")


class FoldedDeltas(Sequence[LogEntry]):
    """A sequence of Text or ReasoningDelta entries, stored as one string and the lengths of its pieces."""

    __slots__ = ("kind", "lengths", "text")

    def __init__(self, kind: type[Text] | type[ReasoningDelta], text: str, lengths: Iterable[int]) -> None:
        self.kind = kind
        self.text = text
        self.lengths = array("I", lengths)  # in characters

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[LogEntry]:
        kind, text = self.kind, self.text
        return iter([kind(text[start:end]) for start, end in pairwise(accumulate(self.lengths, initial=0))])

    @overload
    def __getitem__(self, index: int) -> LogEntry: ...
    @overload
    def __getitem__(self, index: slice) -> list[LogEntry]: ...
    def __getitem__(self, index: int | slice) -> LogEntry | list[LogEntry]:
        return [*self][index]


def fold_tail(log: list[Sequence[LogEntry]]) -> bool:
    """Fold the last lists of the log if they contain only text or only reasoning. Returns whether they were folded."""
    if type(log) is not list:  # a live log: its followers count its lists
        return False
    deltas = [*chain.from_iterable(log[-FOLD_BATCH:])]
    kinds = {*map(type, deltas)}
    if kinds != {ReasoningDelta} and (kinds != {Text} or any(map(_logprobs, deltas))):
        return False
    pieces = [*map(_text, deltas)]
    log[-FOLD_BATCH:] = [FoldedDeltas(kinds.pop(), "".join(pieces), map(len, pieces))]
    return True
