"""The checkpoint of a response whose server died: it can be resumed if it stopped between two turns of the model.

Partial output of a turn may have reached a client and cannot be generated again, so a response that stopped within a
turn is not resumed. Finished tool calls keep their results; unfinished ones are abandoned.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.deltas import (
    CallDelta,
    CallDone,
    CallStarted,
    ClientItem,
    ItemAdded,
    Progress,
    ServerItem,
    ServerItemDone,
    ServerItemStarted,
    ToolOutputContent,
    TurnEnded,
)
from antiphon.core.emitter.event_log import LogEntry, RunStarted
from antiphon.core.prompt import TokenCounts
from antiphon.protocol.types.builtin_items import McpProtocolError
from antiphon.protocol.types.items import Compaction, McpApprovalRequest, McpCall, McpListTools
from antiphon.tools.base import ToolResult

_SERVER_ERROR = -32000  # implementation-defined server error (JSON-RPC 2.0 §5.1)


class Checkpoint(Struct, frozen=True, kw_only=True):
    """State of a response between two turns, read from its log."""

    next_key: int = 0
    call_count: int = 0
    turn_counts: tuple[TokenCounts, ...] = ()
    results: Mapping[int, ToolOutputContent] = {}
    open_items: Mapping[int, ServerItem] = {}  # items of the server that had not ended
    approval_requested: bool = False  # a client has to approve a call
    approved_started: bool = False  # a call that a client approved was started


def read_checkpoint(entries: Iterable[LogEntry]) -> Checkpoint | None:
    """Read the checkpoint from a log.

    Returns None if the response stopped within a turn or during an operation that cannot be abandoned.
    """
    reader = _CheckpointReader()
    for entry in entries:
        reader.add(entry)
    if reader.is_mid_turn or any(isinstance(item, Compaction) for item in reader.open_items.values()):
        return None
    return Checkpoint(
        next_key=reader.next_key,
        call_count=reader.call_count,
        turn_counts=tuple(reader.turn_counts),
        results=reader.results,
        open_items={key: reader.complete_item(key, item) for key, item in reader.open_items.items()},
        approval_requested=reader.approval_requested,
        approved_started=reader.approved_started,
    )


def abandon_item(item: ServerItem, reason: str) -> ToolResult:
    """Return the failed result of an item whose outcome is unknown."""
    match item:
        case McpListTools():
            return ToolResult(item=replace(item, tools=[], error=reason))
        case McpCall():
            error = McpProtocolError(code=_SERVER_ERROR, message=reason)
            return ToolResult(item=replace(item, status="failed", error=error), model_output=reason)
        case Compaction():
            raise AssertionError("an unfinished compaction cannot be abandoned")
        case _:
            return ToolResult(item=replace(item, status="failed"), model_output=reason)


class _CheckpointReader:
    """Folds log entries into the fields of a checkpoint."""

    def __init__(self) -> None:
        self.next_key = self.call_count = 0
        self.turn_counts: list[TokenCounts] = []
        self.results: dict[int, ToolOutputContent] = {}
        self.open_items: dict[int, ServerItem] = {}
        self.approval_requested = self.approved_started = False
        self.is_mid_turn = False  # the model has produced output since the last turn ended
        self._arguments: dict[int, list[str]] = {}

    def add(self, entry: LogEntry) -> None:
        self.next_key = max(self.next_key, getattr(entry, "key", -1) + 1)
        match entry:
            case RunStarted() | Progress() | CallDone():
                return
            case TurnEnded(counts=counts):
                self._end_turn(counts)
            case ServerItemStarted(key=key, item=item):
                self.open_items[key] = item
                self.call_count += not isinstance(item, McpListTools | Compaction)
            case ServerItemDone(key=key, model_output=result):
                self._finish_call(key, result)
            case ItemAdded(item=item):
                self.approval_requested = self.approval_requested or isinstance(item, McpApprovalRequest)
                self.is_mid_turn = self.is_mid_turn or isinstance(item, ClientItem)
            case CallStarted(kind="mcp"):
                self._start_call(entry)
            case CallDelta(key=key, text=text) if key in self._arguments:
                self._arguments[key].append(text)
            case _:
                self.is_mid_turn = True

    def complete_item(self, key: int, item: ServerItem) -> ServerItem:
        return replace(item, arguments="".join(self._arguments[key])) if isinstance(item, McpCall) else item

    def _end_turn(self, counts: TokenCounts | None) -> None:
        self.is_mid_turn, self.approval_requested = False, False
        if counts is not None:
            self.turn_counts.append(counts)

    def _start_call(self, call: CallStarted) -> None:
        """Note a call that the model made, or that the server started because a client approved it."""
        self.open_items[call.key] = McpCall(
            server_label=call.namespace or "", name=call.name, arguments="", approval_request_id=call.approval
        )
        self._arguments[call.key] = []
        self.call_count += 1
        self.is_mid_turn = self.is_mid_turn or call.approval is None
        self.approved_started = self.approved_started or call.approval is not None

    def _finish_call(self, key: int, result: ToolOutputContent) -> None:
        self.open_items.pop(key, None)
        if result:
            self.results[key] = result
