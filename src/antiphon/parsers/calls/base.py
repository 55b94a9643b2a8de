"""How a model family writes its calls: the rows of `registry.py`, and the pieces that a format splits an answer into.

Adding a format takes a row in `registry.py`, and a subclass of `DelimitedCalls` if no family writes calls in such a
syntax.

A format is fed the answer in chunks, with the reasoning already removed, and returns text and calls. Besides the rules
for parsers, two rules hold: text that is no call is returned unchanged, character for character; malformed calls are
repaired only where there is exactly one way to do so, and are returned as text otherwise.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

from msgspec import Struct

from antiphon.core.deltas import CallDelta, CallDone, CallStarted
from antiphon.core.prompt import Json


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


class CallShape(Struct, frozen=True, kw_only=True):
    """The form of calls in a grammar: {"name": …, "arguments": {…}} and the text around them.

    `marker` begins all calls (`before`) or each of them (`begin`), and ends the preceding text. Without a marker, a
    call must be the complete answer.
    """

    before: str = ""  # before all calls
    begin: str = ""  # before each call
    end: str = ""
    between: str = "\n"
    after: str = ""  # after all calls
    arguments: str = "arguments"
    marker: str = ""


class CallFrame(Struct, frozen=True, kw_only=True):
    """The markers around the calls of a family."""

    openings: tuple[str, ...] = ()
    closings: tuple[str, ...] = ()
    between: tuple[str, ...] = ()  # other markers around calls, which are discarded
    unwrapped_starts: tuple[str, ...] = ()  # texts that begin a call without an opening marker
    unmarked: bool = False  # the complete answer may be calls of offered tools without any marker
    controls: tuple[str, ...] = ()  # the markers that are control tokens, which engines strip unless configured
    shape: CallShape | None = None  # how a grammar writes calls; None: no grammar
    syntax: ClassVar[str] = ""  # the class that parses calls in the syntax of another package: "module:Class"


class CallKeys(Struct, frozen=True, kw_only=True):
    """The keys that a family uses for the parts of a call."""

    name: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    wrappers: tuple[str, ...] = ("function",)  # an object that contains name and arguments
    name_is_key: bool = False  # the name is the key, and the arguments are its value


HeadParser = Callable[[str], str | None]


class JsonFrame(CallFrame, frozen=True, kw_only=True):
    """A family that writes the arguments as JSON.

    A call is an object, {"name": …, "arguments": …}, or a head followed by an object. Several calls may follow a
    marker, in a list or not.
    """

    keys: CallKeys = CallKeys()
    parse_head: HeadParser | None = None  # directly after an opening marker a call may have a head
    fence: str = ""  # an unmarked answer may begin with this; if set, a call between markers may name any tool


class CallTags(Struct, frozen=True, kw_only=True):
    """Notation of a call with tags. Without `name_ends`, the name is part of the tag, like names of parameters."""

    call: str  # text before the name
    name_ends: tuple[str, ...] = ()  # tags that may follow a name outside of a tag
    call_end: str
    key: str  # text before the name of a parameter
    key_end: str = ">"
    value: str = ""  # tag before the value, if the key tag is not enough
    value_end: str
    lead: str = ""  # one `lead` before and one `tail` after the value belong to the format
    tail: str = ""
    type_attribute: str = ""  # attribute of the tag that is "true" if the value is a string


class TagFrame(CallFrame, frozen=True, kw_only=True):
    """A family that writes a call and each parameter in a tag.

    An opening marker without a call is text.
    """

    tags: CallTags
    offered_only: bool = True  # a call tag without the marker around it must name an offered tool


class LiteralFrame(CallFrame, frozen=True, kw_only=True):
    """A family that writes calls in Python, [f(a=1), g()], or call:f{a:<escape>x<escape>,b:1} if `quote` is set."""

    quote: str = ""  # the marker around strings
