"""Ends a Harmony answer at a client's stop string.

Engines look for such strings in all that a model says, its thoughts and headers included. Here they are looked for in
the answer alone, which is all that a client can mean.
"""

from collections.abc import Sequence

from antiphon.core.deltas import Delta, Text
from antiphon.core.prompt import Chunk
from antiphon.core.stop_strings import StopCut
from antiphon.parsers.ledger import Ledger
from antiphon.protocol.types.response import Logprob


class Stopping:
    """Of one message. `keeps`: the string is a part of the answer."""

    def __init__(self, stops: Sequence[str], keeps: bool) -> None:
        self._cut = StopCut(stops)
        self._keeps = keeps
        self._ledger: Ledger | None = None
        self._heard = self._told = 0  # characters

    @property
    def found(self) -> str:
        """The string that ended it; "" while none has."""
        return self._cut.found

    def say(self, text: str, logprobs: Sequence[Logprob], out: list[Delta]) -> None:
        if logprobs or self._ledger is not None:
            self._ledger = self._ledger or Ledger(self._heard)
            self._ledger.note(Chunk(text=text, logprobs=tuple(logprobs)))
        self._heard += len(text)
        told = self._cut.feed(text)
        self._tell(told + self._cut.found if self._keeps else told, out)

    def finish(self, out: list[Delta]) -> None:
        """What was held back was none."""
        self._tell(self._cut.finish(), out)

    def _tell(self, text: str, out: list[Delta]) -> None:
        if text:
            begin, self._told = self._told, self._told + len(text)
            out.append(Text(text, () if self._ledger is None else self._ledger.take(begin, self._told)))
