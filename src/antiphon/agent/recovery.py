"""The checkpoint of a response whose server died: it can be resumed if it stopped between two turns of the model.

Partial output of a turn may have reached a client and cannot be generated again, so a response that stopped within a
turn is not resumed. Finished tool calls keep their results; unfinished ones are abandoned.
"""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core import deltas
from antiphon.core.emitter.event_log import LogEntry, RunStarted
from antiphon.core.emitter.server_item_kinds import SERVER_ITEM_KINDS, make_call_item
from antiphon.core.image_generation import make_image_error
from antiphon.core.prompt import TokenCounts
from antiphon.errors import ServerRestarted
from antiphon.protocol.types import items as it
from antiphon.tools.base import ToolResult

_SERVER_ERROR = -32000  # implementation-defined server error (JSON-RPC 2.0 §5.1)


class Checkpoint(Struct):
    """State of a response between two turns, folded from the entries of its log."""

    next_key: int = 0
    call_count: int = 0
    turn_counts: list[TokenCounts] = []
    results: dict[int, deltas.ToolOutputContent] = {}
    open_items: dict[int, deltas.StartedItem] = {}  # items of the server that had not ended
    approval_requested: bool = False  # a client has to approve a call
    approved_started: bool = False  # a call that a client approved was started
    is_mid_turn: bool = False  # the model has produced output since the last turn ended
    _arguments: dict[int, list[str]] = {}  # of the open items, in pieces

    def add(self, entry: LogEntry) -> None:
        self.next_key = max(self.next_key, getattr(entry, "key", -1) + 1)
        match entry:
            case RunStarted() | deltas.Progress() | deltas.CommandDone() | deltas.ImagePreview() | deltas.CallDone():
                return
            case deltas.TurnEnded(counts=counts):
                self.is_mid_turn, self.approval_requested = False, False
                if counts is not None:
                    self.turn_counts.append(counts)
            case deltas.ServerItemStarted(key=key, item=item):
                self.open_items[key] = item
                self.call_count += not isinstance(item, it.McpListTools | it.Compaction)
                # A shell call before the first turn is one that a client approved.
                self.approved_started = self.approved_started or (
                    isinstance(item, it.ShellCall) and not self.turn_counts
                )
            case deltas.ServerItemDone(key=key, model_output=result):
                self.open_items.pop(key, None)
                if result:
                    self.results[key] = result
            case deltas.ItemAdded(item=item):
                self.approval_requested = self.approval_requested or isinstance(item, it.McpApprovalRequest)
                self.is_mid_turn = self.is_mid_turn or isinstance(item, deltas.ClientItem)
            case deltas.CallStarted(kind="mcp" | "code_interpreter"):
                self._start_call(entry)
            case deltas.CallDelta(key=key, text=text) if key in self._arguments:
                self._arguments[key].append(text)
            case _:
                self.is_mid_turn = True

    def join_arguments(self) -> None:
        """Complete the calls that had not ended by their arguments."""
        for key, pieces in self._arguments.items():
            if (item := self.open_items.get(key)) is not None and (field := SERVER_ITEM_KINDS[type(item)].streamed):
                setattr(item, field.field, "".join(pieces))

    def _start_call(self, call: deltas.CallStarted) -> None:
        """Note a call that the model made, or that the server started because a client approved it."""
        self.open_items[call.key] = make_call_item(call)
        self._arguments[call.key] = []
        self.call_count += 1
        self.is_mid_turn = self.is_mid_turn or call.approval is None
        self.approved_started = self.approved_started or call.approval is not None


def read_checkpoint(entries: Iterable[LogEntry]) -> Checkpoint | None:
    """Read the checkpoint. None if the response stopped within a turn, or in an operation that cannot be abandoned."""
    checkpoint = Checkpoint()
    for entry in entries:
        checkpoint.add(entry)
    checkpoint.join_arguments()
    compacts = any(isinstance(item, it.Compaction) for item in checkpoint.open_items.values())
    return None if checkpoint.is_mid_turn or compacts else checkpoint


def abandon_item(item: deltas.StartedItem, reason: str) -> ToolResult:
    """Return the failed result of an item whose outcome is unknown."""
    match item:
        case it.McpListTools():
            return ToolResult(item=replace(item, tools=[], error=reason))
        case it.McpCall():
            error = it.McpProtocolError(code=_SERVER_ERROR, message=reason)
            return ToolResult(item=replace(item, status="failed", error=error), model_output=reason)
        case it.Compaction():
            raise AssertionError("an unfinished compaction cannot be abandoned")
        case it.ShellCall() | it.ShellCallOutput():
            return ToolResult(item=it.ShellCallOutput(call_id="", status="incomplete", output=[]), model_output=reason)
        case it.ImageGenerationCall():
            failed = replace(item, status="failed", result=None, error=make_image_error(ServerRestarted(reason)))
            return ToolResult(item=failed, model_output=reason)
        case _:
            return ToolResult(item=replace(item, status="failed"), model_output=reason)
