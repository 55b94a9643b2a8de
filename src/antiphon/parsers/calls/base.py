"""Tool calls as a family of models writes them. Adding one is a file or a row here and a line in registry.py.

A format is fed the answer without its thoughts, in pieces, and gives text and calls. It keeps the rules of parsers,
and two more: what is no call comes out as it was said, to the character; what is broken is mended only where there is
one way to mend it, and is text otherwise.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from antiphon.core.deltas import CallDelta, CallDone, CallStarted
from antiphon.core.prompt import Grammar, Json


class Said(Struct, frozen=True, gc=False):
    """Text that is no call."""

    text: str
    end: int  # where it ends in all that was fed, in characters; log probabilities are found by it


Piece = Said | CallStarted | CallDelta | CallDone


class Thinking(Struct, frozen=True, kw_only=True):
    """A thought that may come first: its marks as they stand in a grammar, and whether the prompt has opened it."""

    opening: str
    closing: str
    opened: bool = False


class Wish(Struct, frozen=True, kw_only=True):
    """What an answer must be: calls of these tools, one or several, or something else if there is an `answer`."""

    tools: Mapping[str, Json]  # by offered name: chat function schemas
    most: Literal["one", "several"] = "several"
    answer: Json | Literal["text"] | None = None  # a schema, or any text; None: it must call
    thinks_first: Thinking | None = None


class CallFormat(Protocol):
    """One for each call of a model. `tools`: the schemas of what is offered, by name."""

    def __init__(self, tools: Mapping[str, Json]) -> None: ...

    @property
    def openings(self) -> tuple[str, ...]:
        """Texts with which a call begins; they end a thought that was left open."""

    @property
    def controls(self) -> tuple[str, ...]:
        """Those of its marks that are control tokens in its models, which engines hide unless they are told not to."""

    def feed(self, text: str) -> Sequence[Piece]: ...

    def finish(self) -> Sequence[Piece]:
        """The answer is over: a call that was cut is done too, and says what there was of its arguments."""

    def grammar(self, wish: Wish) -> Grammar | None:
        """A Lark grammar (llguidance's dialect) of the answers that call as wished; None: it has none."""
