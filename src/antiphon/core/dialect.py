"""Another API's words for the same deltas: chat completions, completions, messages. Ids and time are handed in.

    begin ─▶ ( note* feed* end ) for each choice, interleaved ─▶ close
       └───────────────────────── or, at any moment ───────────▶ fault

agent/exchange.py calls these in this order and tells what they give; transport frames it. What `begin` gives is told
only together with the first words, so that whatever fails before them is a plain error. Nothing comes after `close` or
`fault`. The JSON body is the fold of what was told: `fold` is given every list, then `result` is asked; a stream pays
for no fold.
"""

from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct

from antiphon.core.deltas import Delta
from antiphon.core.prompt import Chunk, Counts, Finish
from antiphon.errors import AntiphonError

Told = list[Struct]


class Head(Struct, frozen=True, kw_only=True):
    """What every piece of a chat completion or a completion says of the whole."""

    id: str
    created: int
    model: str
    service_tier: str | None = None  # the one that it runs in, if that is to be told


class Speaker(Protocol):
    """What is said of choices, numbered from 0: a request for several answers has several."""

    def note(self, chunk: Chunk, choice: int = 0) -> None:
        """Before the deltas of this chunk are fed, if it has extras, or ids of tokens that were asked for."""

    def feed(self, deltas: Iterable[Delta], choice: int = 0) -> Told:
        """The token path."""

    def end(self, finish: Finish, counts: Counts, choice: int = 0) -> Told:
        """One choice is over, and took so many tokens."""


class Dialect(Speaker, Protocol):
    """One for each exchange."""

    def begin(self) -> Told:
        """What comes before the first word of any choice."""

    def close(self, counts: Counts) -> Told:
        """All of it is over, and took so many tokens together."""

    def fault(self, error: AntiphonError) -> Told:
        """It failed after something was told: the last thing of all."""

    def fold(self, told: Told) -> None:
        """Take what was told into the JSON body."""

    def result(self) -> Struct:
        """The JSON body, after everything was folded."""
