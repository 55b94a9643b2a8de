"""A response's log: what happened, from which an Emitter makes the same events again at any time, anywhere.

    opening Response ── Began ── Delta* ── Ended

`Began` is `response.in_progress`; the events before it need no entry. An entry says all that its events need beyond the
opening Response: ids are made again in the same order, numbers are counted.

A long stretch of a log, folded: what was said in one kind of delta, and how it was cut into pieces.

It stands for as many entries as it was made of, and takes a tenth of their room: a log is kept for as long as its
response runs, and most of it is one small list for each token.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise
from operator import attrgetter
from typing import overload

from msgspec import Struct

from antiphon.core.deltas import Delta, Text, Thought
from antiphon.protocol.types.response import IncompleteReason, ResponseStatus, Usage


class Began(Struct, frozen=True, array_like=True, tag="began"):
    """The engine was given the work."""


class Fault(Struct, frozen=True, kw_only=True):
    """An error as clients were told of it."""

    type: str
    code: str | None
    message: str
    param: str | None = None
    retry_after: float | None = None


class Ended(Struct, frozen=True, kw_only=True, array_like=True, tag="ended"):
    status: ResponseStatus
    reason: IncompleteReason | None = None
    fault: Fault | None = None
    usage: Usage | None = None
    at: int
    silent: bool = False  # nothing was to be said


Entry = Began | Delta | Ended


EVERY = 64  # lists of a log that are folded at a time

_text = attrgetter("text")
_logprobs = attrgetter("logprobs")


class Spoken(Sequence[Entry]):
    __slots__ = ("kind", "lengths", "text")

    def __init__(self, kind: type[Text] | type[Thought], pieces: Sequence[str]) -> None:
        self.kind = kind
        self.text = "".join(pieces)
        self.lengths = array("I", map(len, pieces))  # in characters

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[Entry]:
        kind, text = self.kind, self.text
        return iter([kind(text[start:end]) for start, end in pairwise(accumulate(self.lengths, initial=0))])

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        return [*self][index]


def gather(log: list[Sequence[Entry]]) -> bool:
    """Fold the last lists of it, if they are text or thoughts and nothing else. Were they?"""
    if type(log) is not list:  # somebody follows it, by the number of its lists
        return False
    deltas = [*chain.from_iterable(log[-EVERY:])]
    kinds = {*map(type, deltas)}
    if kinds == {Thought}:
        log[-EVERY:] = [Spoken(Thought, [*map(_text, deltas)])]
    elif kinds == {Text} and not any(map(_logprobs, deltas)):
        log[-EVERY:] = [Spoken(Text, [*map(_text, deltas)])]
    else:
        return False
    return True
