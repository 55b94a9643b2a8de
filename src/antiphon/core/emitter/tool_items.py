"""Items of tools that are not plain functions: how they look when added or cut short, and which events they emit.

Items of server tools, one row per kind in `SERVER_ITEM_KINDS`:

    mcp_call                added → in_progress → arguments delta* → arguments done → completed | failed → done
    mcp_list_tools          added → in_progress → completed | failed → done
    web_, file_search_call  added → in_progress → searching → completed → done
    code_interpreter_call   added → in_progress → code delta → code done → interpreting → completed → done
    image_generation_call   added → in_progress → generating → completed → done
    compaction              added → compacting → done

Where OpenAI defines no failure event, only the item reports the failure.

Calls of tools that the client runs and that models do not know natively:

    shell_call                                            added → [command added → delta → done]* → done
    local_shell_call, apply_patch_call, tool_search_call  added → done

These are emitted when complete: only then is it known that the call is of this kind and valid.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, TypeGuard, TypeVar

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from antiphon.core.deltas import AddedItem, ClientItem, ServerItem
from antiphon.protocol.types import events as ev
from antiphon.protocol.types import tool_events as tool_ev
from antiphon.protocol.types.builtin_items import SearchAction
from antiphon.protocol.types.items import (
    ApplyPatchCall,
    CodeInterpreterCall,
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    FileSearchCall,
    FunctionCall,
    FunctionCallOutput,
    ImageGenerationCall,
    LocalShellCall,
    McpApprovalRequest,
    McpCall,
    McpListTools,
    OutputItem,
    ShellCall,
    ToolSearchCall,
    WebSearchCall,
)

ItemEventType = type[ev.ItemEvent]
ItemPosition = tuple[str, int]  # position of an item: its id and its output index
_ToolOutput = FunctionCallOutput | CustomToolCallOutput
_ServerItemT = TypeVar("_ServerItemT", bound=ServerItem)

NOT_LISTED = "The tools were not listed: the response ended before."


class StreamedField(Struct, frozen=True):
    """A field that is empty in the added item and follows in delta and done events; one delta if it is known at the
    start.
    """

    field: str
    delta: Callable[..., ev.Event]
    done: Callable[..., ev.Event]


class ServerItemKind(Struct, frozen=True, kw_only=True):
    """Events and field values of one kind of server item."""

    started: ItemEventType
    stages: Mapping[str, ItemEventType] = {}  # event types by `Progress.stage`
    completed: ItemEventType | None = None
    failed: ItemEventType | None = None
    streamed: StreamedField | None = None
    initial: Mapping[str, Any]  # values of fields that are unknown when the item is added
    truncated: Mapping[str, Any]  # values of fields if the response ends before the item


_IN_PROGRESS = {"status": "in_progress"}
_INCOMPLETE = {"status": "incomplete"}

SERVER_ITEM_KINDS: Mapping[type, ServerItemKind] = {
    McpCall: ServerItemKind(
        started=tool_ev.McpCallInProgress,
        stages={"progress": tool_ev.McpCallInProgress},  # MCP has no progress event of its own
        completed=tool_ev.McpCallCompleted,
        failed=tool_ev.McpCallFailed,
        streamed=StreamedField("arguments", tool_ev.McpCallArgumentsDelta, tool_ev.McpCallArgumentsDone),
        initial=_IN_PROGRESS | {"arguments": "", "output": None, "error": None},
        truncated=_INCOMPLETE,
    ),
    McpListTools: ServerItemKind(
        started=tool_ev.McpListToolsInProgress,
        completed=tool_ev.McpListToolsCompleted,
        failed=tool_ev.McpListToolsFailed,
        initial={"tools": [], "error": UNSET},
        truncated={"error": NOT_LISTED},
    ),
    WebSearchCall: ServerItemKind(
        started=tool_ev.WebSearchCallInProgress,
        stages={"searching": tool_ev.WebSearchCallSearching},
        completed=tool_ev.WebSearchCallCompleted,
        initial=_IN_PROGRESS | {"results": UNSET},
        truncated=_INCOMPLETE,
    ),
    FileSearchCall: ServerItemKind(
        started=tool_ev.FileSearchCallInProgress,
        stages={"searching": tool_ev.FileSearchCallSearching},
        completed=tool_ev.FileSearchCallCompleted,
        initial=_IN_PROGRESS | {"results": None},
        truncated=_INCOMPLETE,
    ),
    CodeInterpreterCall: ServerItemKind(
        started=tool_ev.CodeInterpreterCallInProgress,
        stages={"interpreting": tool_ev.CodeInterpreterCallInterpreting},
        completed=tool_ev.CodeInterpreterCallCompleted,
        streamed=StreamedField("code", tool_ev.CodeInterpreterCallCodeDelta, tool_ev.CodeInterpreterCallCodeDone),
        initial=_IN_PROGRESS | {"code": "", "outputs": None},
        truncated=_INCOMPLETE,
    ),
    ImageGenerationCall: ServerItemKind(
        started=tool_ev.ImageGenerationCallInProgress,
        stages={"generating": tool_ev.ImageGenerationCallGenerating},
        completed=tool_ev.ImageGenerationCallCompleted,
        initial=_IN_PROGRESS | {"result": None, "revised_prompt": UNSET, "error": UNSET, "svg_usage": UNSET},
        truncated={"status": "failed"},  # this item type has no status `incomplete`
    ),
    Compaction: ServerItemKind(started=tool_ev.CompactionCompacting, initial={"encrypted_content": ""}, truncated={}),
}

_SERVER_OUTPUT_TYPES = frozenset({*SERVER_ITEM_KINDS, FunctionCallOutput, CustomToolCallOutput}) - {Compaction}


def is_server_item(item: OutputItem) -> TypeGuard[ServerItem]:
    return type(item) in SERVER_ITEM_KINDS


def to_added_item(item: _ServerItemT, item_id: str) -> _ServerItemT:
    """Return the item as it looks when added."""
    return replace(item, id=item_id, **SERVER_ITEM_KINDS[type(item)].initial, **_initial_action(item))


def initial_view(item: ServerItem) -> ServerItem:
    """Return all of an item that is emitted when it starts. Items with equal views start with the same events."""
    streamed = SERVER_ITEM_KINDS[type(item)].streamed
    return (
        to_added_item(item, "")
        if streamed is None
        else replace(to_added_item(item, ""), **{streamed.field: getattr(item, streamed.field)})
    )


def added_events(item: ServerItem, position: ItemPosition) -> list[ev.Event]:
    item_id, index = position
    started = SERVER_ITEM_KINDS[type(item)].started(item_id=item_id, output_index=index)
    return [ev.OutputItemAdded(output_index=index, item=to_added_item(item, item_id)), started]


def start_events(item: ServerItem, position: ItemPosition) -> list[ev.Event]:
    """Return the events that start an item, including those of its streamed field."""
    item_id, index = position
    events, streamed = added_events(item, position), SERVER_ITEM_KINDS[type(item)].streamed
    if streamed is None or (text := getattr(item, streamed.field)) is None:
        return events
    if text:
        events.append(streamed.delta(item_id=item_id, output_index=index, delta=text))
    return [*events, streamed.done(item_id=item_id, output_index=index, **{streamed.field: text})]


def end_events(item: _ServerItemT, position: ItemPosition) -> list[ev.Event]:
    """Return the events that end an item, which is complete except for its id. A missing status is set."""
    item_id, index = position
    kind, succeeded = SERVER_ITEM_KINDS[type(item)], has_succeeded(item)
    if getattr(item, "status", None) is UNSET:
        item = replace(item, status="completed" if succeeded else "failed")
    events: list[ev.Event] = [ev.OutputItemDone(output_index=index, item=replace(item, id=item_id))]
    if (event_type := kind.completed if succeeded else kind.failed) is not None:
        events.insert(0, event_type(item_id=item_id, output_index=index))
    return events


def truncate_item(item: ServerItem) -> ServerItem:
    """Return the item as it ends if the response ends first. Idempotent."""
    return replace(initial_view(item), **SERVER_ITEM_KINDS[type(item)].truncated)


def has_succeeded(item: ServerItem) -> bool:
    """Check that the item has no error and is completed."""
    return getattr(item, "error", None) in (None, UNSET) and getattr(item, "status", UNSET) in ("completed", UNSET)


def has_no_answer(output: Sequence[OutputItem]) -> bool:
    """Check whether the model owes an answer: the output is empty, or it ends with server output and no call is
    pending.

    A compaction does not count as server output here: it may be all that was requested.
    """
    if not output:
        return True
    if type(output[-1]) not in _SERVER_OUTPUT_TYPES:
        return False
    answered = {item.call_id for item in output if isinstance(item, _ToolOutput)}
    return not any(isinstance(item, McpApprovalRequest) or _is_pending_call(item, answered) for item in output)


def _is_pending_call(item: OutputItem, answered: Container[str | UnsetType]) -> bool:
    """Check whether the item is a call that the client still has to execute."""
    return isinstance(item, FunctionCall | CustomToolCall | ClientItem) and item.call_id not in answered


def complete_item_events(item: AddedItem, position: ItemPosition) -> list[ev.Event]:
    """Return the events of an item that is added and done at once."""
    item_id, index = position
    complete = replace(item, id=item_id)
    if isinstance(complete, _ToolOutput) and complete.status is UNSET:
        complete.status = "completed"
    return [ev.OutputItemAdded(output_index=index, item=complete), ev.OutputItemDone(output_index=index, item=complete)]


def _initial_action(item: ServerItem) -> dict[str, Any]:
    """Search sources are not known when the search starts."""
    if isinstance(item, WebSearchCall) and isinstance(item.action, SearchAction):
        return {"action": replace(item.action, sources=UNSET)}
    return {}


_CLIENT_ITEM_TYPES = frozenset({ShellCall, LocalShellCall, ApplyPatchCall, ToolSearchCall})


def is_client_item(item: OutputItem) -> TypeGuard[ClientItem]:
    return type(item) in _CLIENT_ITEM_TYPES


def clear_call_id(item: ClientItem) -> ClientItem:
    """Return the call as it is before the emitter assigns its call_id."""
    return replace(item, call_id="")


def client_call_events(item: ClientItem, position: ItemPosition, call_id: str) -> list[ev.Event]:
    """Return the events of a complete client call."""
    item_id, index = position
    complete = replace(item, id=item_id, call_id=call_id)
    started = replace(complete, status="in_progress")
    steps: list[ev.Event] = []
    if isinstance(started, ShellCall):
        steps = [
            step for number, text in enumerate(started.action.commands) for step in _command_events(index, number, text)
        ]
        started.action = replace(started.action, commands=[])
    done = ev.OutputItemDone(output_index=index, item=complete)
    return [ev.OutputItemAdded(output_index=index, item=started), *steps, done]


def _command_events(index: int, number: int, text: str) -> list[ev.Event]:
    added = tool_ev.ShellCallCommandAdded(output_index=index, command_index=number, command="")
    delta = tool_ev.ShellCallCommandDelta(output_index=index, command_index=number, delta=text)
    return [added, delta, tool_ev.ShellCallCommandDone(output_index=index, command_index=number, command=text)]
