"""Model output → deltas. A parser is fed in pieces, is pure, and takes linear time.

The rules every parser keeps (tests/contracts/test_parser.py runs them over the registry):
- cutting the output elsewhere changes nothing in what is said;
- `finish` releases whatever was held back in case it was the start of a marker;
- every call that started is done by then.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.core.deltas import Delta
from antiphon.core.prompt import Chunk, Json, Prompt


class Reading(Struct, frozen=True, kw_only=True):
    """How the raw output of a model is to be read. Settled before it runs; nothing is found out from what it says."""

    thoughts: str | None = None  # a name in parsers/reasoning/formats.py; None: it does not think, or nobody asked what
    calls: str | None = None  # a name in parsers/calls/registry.py; None: nothing was offered
    unseen: bool = False  # the engine made the prompt itself, and it may have ended within a thought
    brackets: bool = False  # the answer is JSON: with a bracket it begins, though the prompt has opened a thought
    tools: Mapping[str, Json] = {}  # the schemas of what is offered, by name; formats without types need them
    stop: tuple[str, ...] = ()  # strings that end the answer, where the parser has to see to it and not the engine
    keeps_stop: bool = False  # the one that ended it is a part of it


PLAIN = Reading()


class Enough(Exception):
    """Raised by `feed` once the answer has ended, though the model goes on: nothing that follows is listened to."""

    def __init__(self, last: Chunk) -> None:
        """`last`: the end, as an engine would have told it."""
        super().__init__("the answer has ended")
        self.last = last


class Parser(Protocol):
    """One for each call of a model; the prompt tells where the model takes over."""

    def __init__(self, prompt: Prompt, reading: Reading = PLAIN) -> None: ...

    @property
    def reasoning_tokens(self) -> int:
        """As far as they were counted here, once it is finished: 0 where only the engine can tell."""
        ...

    def feed(self, chunk: Chunk) -> Sequence[Delta]:
        """On the token path: plain text must cost next to nothing."""
        ...

    def finish(self) -> Sequence[Delta]: ...
