"""Interfaces of the tool-call formats of model families.

Adding a format takes a file or a row in this package and a line in `registry.py`.

A format is fed the answer in chunks, with the reasoning already removed, and returns text and calls. Besides the rules
for parsers, two rules hold: text that is no call is returned unchanged, character for character; malformed calls are
repaired only where there is exactly one way to do so, and are returned as text otherwise.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from antiphon.core.deltas import CallDelta, CallDone, CallStarted
from antiphon.core.prompt import Grammar, Json


class TextPiece(Struct, frozen=True, gc=False):
    """Text that is not part of a call."""

    text: str
    end: int  # end offset in everything that was fed, in characters; used to align log probabilities


Piece = TextPiece | CallStarted | CallDelta | CallDone


class ReasoningPrefix(Struct, frozen=True, kw_only=True):
    """Reasoning that may precede the answer.

    `opening` and `closing` are its markers in grammar notation; `is_open` is set if the prompt has already opened it.
    """

    opening: str
    closing: str
    is_open: bool = False


class GrammarRequest(Struct, frozen=True, kw_only=True):
    """The answers that a grammar must allow: calls of these tools, or also something else if `answer` is set."""

    tools: Mapping[str, Json]  # chat function schemas by offered name
    call_count: Literal["one", "several"] = "several"
    answer: Json | Literal["text"] | None = None  # a JSON schema, or any text; None: the answer must be a call
    reasoning: ReasoningPrefix | None = None


class CallFormat(Protocol):
    """Parses the tool calls of one model call. `tools` holds the schemas of the offered tools by name."""

    def __init__(self, tools: Mapping[str, Json]) -> None: ...

    @property
    def openings(self) -> tuple[str, ...]:
        """Texts that a call begins with; they end reasoning that was not closed."""

    @property
    def controls(self) -> tuple[str, ...]:
        """The markers that are control tokens in the models; engines strip them unless configured otherwise."""

    def feed(self, text: str) -> Sequence[Piece]: ...

    def finish(self) -> Sequence[Piece]:
        """End the answer. A truncated call is completed with the arguments received so far."""

    def build_grammar(self, request: GrammarRequest) -> Grammar | None:
        """Return a Lark grammar (llguidance's dialect) for the requested answers; None if the format has none."""
