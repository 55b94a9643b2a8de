"""Model output → deltas. A parser is fed in pieces, is pure, and takes linear time.

Rules for every parser (tests/contracts/test_parser.py):
- the result does not depend on where the output is cut into pieces;
- `finish` releases text that was held back as the possible start of a marker;
- every call that started is done by then.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.core.deltas import Delta
from antiphon.core.prompt import Chunk, Json, Prompt


class ParserOptions(Struct, frozen=True, kw_only=True):
    """Options for parsing the raw output of a model, fixed before it runs: nothing is guessed from the output."""

    # name in parsers/reasoning.py; None: no reasoning, or it is not to be split off
    reasoning: str | None = None
    calls: str | None = None  # name in parsers/calls/registry.py; None: no tools were offered
    prompt_hidden: bool = False  # the engine rendered the prompt, which may have ended within reasoning
    json_answer: bool = False  # the answer is JSON: it starts at a leading bracket even if the prompt opened reasoning
    tools: Mapping[str, Json] = {}  # schemas of the offered tools by name; call formats without types need them
    stop: tuple[str, ...] = ()  # strings that end the answer, if the parser and not the engine has to detect them
    include_stop: bool = False  # include the matching stop string in the answer


DEFAULT_OPTIONS = ParserOptions()


class AnswerEnded(Exception):
    """Raised by `feed` once the answer has ended although the model continues: all further output is discarded."""

    def __init__(self, final_chunk: Chunk) -> None:
        """`final_chunk`: the end of the answer in the form of an engine's last chunk."""
        super().__init__("the answer has ended")
        self.final_chunk = final_chunk


class Parser(Protocol):
    """Parses the output of one model call; the prompt determines the state in which the output begins."""

    def __init__(self, prompt: Prompt, options: ParserOptions = DEFAULT_OPTIONS) -> None: ...

    @property
    def reasoning_tokens(self) -> int:
        """Reasoning tokens counted by the parser, valid after `finish`; 0 if only the engine can count them."""
        ...

    def feed(self, chunk: Chunk) -> Sequence[Delta]:
        """Parse the next chunk. On the token path: plain text must cost next to nothing."""
        ...

    def finish(self) -> Sequence[Delta]: ...
