"""The vocabulary between parsers and the emitters: what a model did, piece by piece.

Text, Thought, Summary, Sealed and Refusal belong to the item that is open; another kind closes it and
opens its own; Break closes it too. Calls are named by a key, so that parallel ones may overlap.
"""

from typing import Literal

from msgspec import Struct

from antiphon.protocol.items import Annotation, Phase
from antiphon.protocol.response import Logprob

# Logs are written with the tags and the order of the fields: a field may be added at the end, with a default.


class Text(Struct, frozen=True, gc=False, array_like=True, tag="t"):
    text: str
    logprobs: tuple[Logprob, ...] = ()


class Thought(Struct, frozen=True, gc=False, array_like=True, tag="r"):
    text: str


class Summary(Struct, frozen=True, gc=False, array_like=True, tag="s"):
    """A piece of a reasoning summary; `part` counts the summary's paragraphs."""

    text: str
    part: int = 0


class Sealed(Struct, frozen=True, gc=False, array_like=True, tag="x"):
    """The open reasoning, whole and sealed, for the client to bring back. At most one for each item, as its last."""

    text: str


class Refusal(Struct, frozen=True, gc=False, array_like=True, tag="n"):
    text: str


class Break(Struct, frozen=True, array_like=True, tag="b"):
    """The message or the reasoning that is open is over, whatever follows. A message that comes next has this phase."""

    phase: Phase | None = None


class Citation(Struct, frozen=True, array_like=True, tag="a"):
    """An annotation of the text said so far in the open message."""

    annotation: Annotation


class CallStarted(Struct, frozen=True, array_like=True, tag="c"):
    """A parser says the name the model used; agent/declared.py says what kind of call that is."""

    key: int
    name: str
    kind: Literal["function", "custom"] = "function"
    namespace: str | None = None


class CallDelta(Struct, frozen=True, gc=False, array_like=True, tag="d"):
    key: int
    text: str


class CallDone(Struct, frozen=True, array_like=True, tag="e"):
    key: int


Delta = Text | Thought | Summary | Sealed | Refusal | Break | Citation | CallStarted | CallDelta | CallDone
