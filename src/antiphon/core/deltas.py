"""Deltas: the incremental output of a model and of server tools, as parsers and tools hand it to the emitters.

Text, ReasoningDelta, Summary, EncryptedReasoning and Refusal belong to the open item. A delta of another kind closes
that item and opens its own; Break closes it as well. Calls are identified by a key, so parallel calls may overlap.

A client call (function, custom) ends with CallDone. A call of a tool that models do not know natively (a shell, a
patch) is emitted as one `ItemAdded` once it is complete. A call that the server runs stays open until `ServerItemDone`:

    mcp, code interpreter     CallStarted ── CallDelta* ── CallDone ──┐
    all others                ServerItemStarted ──────────────────────┴── Progress* ── ServerItemDone

A call of a shell that the server runs has two items: `ServerItemStarted` has the complete call, after which the item of
its output is open, and `ServerItemDone` has the output.
"""

from typing import Literal

from msgspec import Struct

from antiphon.core.prompt import TokenCounts
from antiphon.protocol.types import items as it
from antiphon.protocol.types.parts import Annotation, InputImage, InputText, Logprob

CallKind = Literal["function", "custom", "mcp", "code_interpreter"]
_HostedToolCall = it.WebSearchCall | it.FileSearchCall | it.CodeInterpreterCall | it.ImageGenerationCall
ServerItem = it.McpCall | it.McpListTools | _HostedToolCall | it.ShellCallOutput | it.Compaction
StartedItem = ServerItem | it.ShellCall
ClientItem = it.ShellCall | it.LocalShellCall | it.ApplyPatchCall | it.ToolSearchCall | it.ComputerCall
AddedItem = it.McpApprovalRequest | it.FunctionCallOutput | it.CustomToolCallOutput | ClientItem
ToolOutputContent = str | list[InputText | InputImage]  # tool output as the model reads it

# Logs persist the tags and the field order: new fields go at the end and need a default.


class Text(Struct, frozen=True, gc=False, array_like=True, tag="t"):
    """A piece of output text with its log probabilities, if requested."""

    text: str
    logprobs: tuple[Logprob, ...] = ()


class ReasoningDelta(Struct, frozen=True, gc=False, array_like=True, tag="r"):
    """A piece of raw reasoning."""

    text: str


class Summary(Struct, frozen=True, gc=False, array_like=True, tag="s"):
    """A piece of a reasoning summary; `part` is the index of the summary paragraph."""

    text: str
    part: int = 0


class EncryptedReasoning(Struct, frozen=True, gc=False, array_like=True, tag="x"):
    """The complete open reasoning, encrypted, for the client to send back. At most one per item, as its last delta."""

    text: str


class Refusal(Struct, frozen=True, gc=False, array_like=True, tag="n"):
    """A piece of a refusal."""

    text: str


class Break(Struct, frozen=True, array_like=True, tag="b"):
    """Close the open message or reasoning item, whatever follows. `phase` applies to the next message."""

    phase: it.Phase | None = None
    cut: bool = False  # the item ended before it was complete


class Citation(Struct, frozen=True, array_like=True, tag="a"):
    """An annotation of the text emitted so far in the open message."""

    annotation: Annotation


class CallStarted(Struct, frozen=True, array_like=True, tag="c"):
    """The start of a tool call. A parser sets the name the model used; `agent/tool_resolver.py` determines the kind."""

    key: int
    name: str
    kind: CallKind = "function"
    namespace: str | None = None  # for an MCP call: the server label; for code: the container
    approval: str | None = None  # id of the approval request that the client granted
    lists_outputs: bool = False  # of code: the client has included them


class CallDelta(Struct, frozen=True, gc=False, array_like=True, tag="d"):
    """A piece of the arguments of an open call."""

    key: int
    text: str


class CallDone(Struct, frozen=True, array_like=True, tag="e"):
    """The arguments of a call are complete."""

    key: int


class ServerItemStarted(Struct, frozen=True, array_like=True, tag="i"):
    """The server starts an operation whose arguments are not streamed.

    `item` is the final item as far as it is known; `core/emitter/tool_items.py` derives its initial form from it. The
    emitter assigns the id.
    """

    key: int
    item: StartedItem


class Progress(Struct, frozen=True, array_like=True, tag="g"):
    """Progress of a server item: searching, interpreting, generating, or generic progress."""

    key: int
    stage: str


class CommandDone(Struct, frozen=True, array_like=True, tag="k"):
    """The end of one command of a shell call: the next element of the output."""

    key: int
    output: it.ShellOutput


class ImagePreview(Struct, frozen=True, gc=False, array_like=True, tag="m"):
    """A preview of the image that a server item makes, in base64, with the options of the image."""

    key: int
    index: int
    data: str
    size: str
    quality: str
    background: str
    output_format: str


class ServerItemDone(Struct, frozen=True, array_like=True, tag="o"):
    """The end of a server operation: its complete item, without the id.

    `model_output` is what the model reads of it if the item itself lacks that. It is in the log and in no event.
    """

    key: int
    item: ServerItem
    model_output: ToolOutputContent = ""


class ItemAdded(Struct, frozen=True, array_like=True, tag="p"):
    """An item that is added and done at once. The emitter assigns its id, and the call_id of a call."""

    item: AddedItem


class TurnEnded(Struct, frozen=True, array_like=True, tag="u"):
    """A model call has ended and all of its output was emitted.

    Open items that the server does not run are closed. What follows is done by the server until the model is called
    again. `counts` is None if no model was called.
    """

    counts: TokenCounts | None = None


PartDelta = Text | ReasoningDelta | Summary | EncryptedReasoning | Refusal | Citation
ServerDelta = ServerItemStarted | Progress | CommandDone | ImagePreview | ServerItemDone | ItemAdded | TurnEnded
InternalDelta = Break | Citation | EncryptedReasoning | ServerDelta  # without an event in other APIs
Delta = PartDelta | Break | CallStarted | CallDelta | CallDone | ServerDelta
