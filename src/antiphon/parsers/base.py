"""Model output → deltas. A parser is fed in pieces, is pure, and takes linear time.

The rules every parser keeps (tests/contracts/test_parser.py runs them over the registry):
- cutting the output elsewhere changes nothing in what is said;
- `finish` releases whatever was held back in case it was the start of a marker;
- every call that started is done by then.
"""

from collections.abc import Sequence
from typing import Protocol

from antiphon.core.deltas import Delta
from antiphon.core.prompt import Chunk, Prompt


class Parser(Protocol):
    """One for each call of a model; the prompt tells where the model takes over."""

    def __init__(self, prompt: Prompt) -> None: ...

    def feed(self, chunk: Chunk) -> Sequence[Delta]:
        """On the token path: plain text must cost next to nothing."""
        ...

    def finish(self) -> Sequence[Delta]: ...
