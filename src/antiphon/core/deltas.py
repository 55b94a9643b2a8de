"""The vocabulary between parsers, tools and the emitters: what a model did, and what was done for it, piece by piece.

Text, Thought, Summary, Sealed and Refusal belong to the item that is open; another kind closes it and
opens its own; Break closes it too. Calls are named by a key, so that parallel ones may overlap.

A client's call (function, custom) ends with CallDone; one of a tool that models do not know (a shell, a patch) is `Put`
when it is whole. One that the server runs stays open until `Ran`:

    mcp                       CallStarted ── CallDelta* ── CallDone ──┐
    searches, lists, …        Opened ─────────────────────────────────┴── Stage* ── Ran
"""

from typing import Literal

from msgspec import Struct

from antiphon.core.prompt import Counts
from antiphon.protocol.types.items import (
    Annotation,
    ApplyPatchCall,
    CodeInterpreterCall,
    Compaction,
    CustomToolCallOutput,
    FileSearchCall,
    FunctionCallOutput,
    ImageGenerationCall,
    InputImage,
    InputText,
    LocalShellCall,
    McpApprovalRequest,
    McpCall,
    McpListTools,
    Phase,
    ShellCall,
    ToolSearchCall,
    WebSearchCall,
)
from antiphon.protocol.types.response import Logprob

CallKind = Literal["function", "custom", "mcp"]
ServerItem = (
    McpCall | McpListTools | WebSearchCall | FileSearchCall | CodeInterpreterCall | ImageGenerationCall | Compaction
)
ClientItem = ShellCall | LocalShellCall | ApplyPatchCall | ToolSearchCall
PutItem = McpApprovalRequest | FunctionCallOutput | CustomToolCallOutput | ClientItem
Said = str | list[InputText | InputImage]  # what a model is told that a tool said

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
    cut: bool = False  # before it had said all


class Citation(Struct, frozen=True, array_like=True, tag="a"):
    """An annotation of the text said so far in the open message."""

    annotation: Annotation


class CallStarted(Struct, frozen=True, array_like=True, tag="c"):
    """A parser says the name the model used; agent/tool_resolver.py says what kind of call that is."""

    key: int
    name: str
    kind: CallKind = "function"
    namespace: str | None = None  # of an MCP call: the server's label
    approval: str | None = None  # the request by which a client allowed it


class CallDelta(Struct, frozen=True, gc=False, array_like=True, tag="d"):
    key: int
    text: str


class CallDone(Struct, frozen=True, array_like=True, tag="e"):
    key: int


class Opened(Struct, frozen=True, array_like=True, tag="i"):
    """The server begins something whose arguments are not told piece by piece. The item is as it will be in the end, as
    far as that is known: what an item shows when it is added is made of it (core/emitter/tool_items.py). Its id is
    ours."""

    key: int
    item: ServerItem


class Stage(Struct, frozen=True, array_like=True, tag="g"):
    """How far it is: searching, interpreting, generating; or that it makes progress."""

    key: int
    word: str


class Ran(Struct, frozen=True, array_like=True, tag="o"):
    """How something that the server did ended: its item, whole, but for the id. `said`: what the model is told of it,
    if the item does not say that itself; it is in the log and in no event."""

    key: int
    item: ServerItem
    said: Said = ""


class Put(Struct, frozen=True, array_like=True, tag="p"):
    """An item that is there at once: added and done. Its id is ours, and the call_id of a call."""

    item: PutItem


class Turned(Struct, frozen=True, array_like=True, tag="u"):
    """A call of the model is over and all that it said is told: what is open and not the server's to run is closed.
    What follows is the server's doing, until the model speaks again. `counts`: None if no model was called."""

    counts: Counts | None = None


Delta = (
    Text
    | Thought
    | Summary
    | Sealed
    | Refusal
    | Break
    | Citation
    | CallStarted
    | CallDelta
    | CallDone
    | Opened
    | Stage
    | Ran
    | Put
    | Turned
)
