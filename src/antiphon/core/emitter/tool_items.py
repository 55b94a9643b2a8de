"""What the server does for a model, as items: how each looks when it is added and when it is cut short, and which
events tell of it. One row for each kind; nothing else knows them apart.

    mcp_call                added → in_progress → arguments delta* → arguments done → completed | failed → done
    mcp_list_tools          added → in_progress → completed | failed → done
    web_, file_search_call  added → in_progress → searching → completed → done
    code_interpreter_call   added → in_progress → code delta → code done → interpreting → completed → done
    image_generation_call   added → in_progress → generating → completed → done
    compaction              added → compacting → done

Where OpenAI has no event for a failure, the item alone says so.

Calls of tools that the client runs and that models do not know, as items: which events tell of each.

    shell_call                                            added → [command added → delta → done]* → done
    local_shell_call, apply_patch_call, tool_search_call  added → done

They are told whole: a call is known to be of its kind, and right, only when all of it was said.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, TypeGuard, TypeVar

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from antiphon.core.deltas import ClientItem, PutItem, ServerItem
from antiphon.protocol.types import events as ev
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

Step = type[ev.ItemEvent]
Place = tuple[str, int]  # where an item stands: its id and its output index
_Answer = FunctionCallOutput | CustomToolCallOutput
_Served = TypeVar("_Served", bound=ServerItem)

NOT_LISTED = "The tools were not listed: the response ended before."


class Whole(Struct, frozen=True):
    """A field that is empty at first and then told, in one piece if it is known from the beginning."""

    field: str
    delta: Callable[..., ev.Event]
    done: Callable[..., ev.Event]


class Kind(Struct, frozen=True, kw_only=True):
    begins: Step
    stages: Mapping[str, Step] = {}  # by the words of a Stage
    completed: Step | None = None
    failed: Step | None = None
    whole: Whole | None = None
    empty: Mapping[str, Any]  # what is not known when it is added
    cut: Mapping[str, Any]  # what it says if the response ended before it did


_BEGUN = {"status": "in_progress"}
_CUT = {"status": "incomplete"}

KINDS: Mapping[type, Kind] = {
    McpCall: Kind(
        begins=ev.McpCallInProgress,
        stages={"progress": ev.McpCallInProgress},  # there is no other word for it
        completed=ev.McpCallCompleted,
        failed=ev.McpCallFailed,
        whole=Whole("arguments", ev.McpCallArgumentsDelta, ev.McpCallArgumentsDone),
        empty=_BEGUN | {"arguments": "", "output": None, "error": None},
        cut=_CUT,
    ),
    McpListTools: Kind(
        begins=ev.McpListToolsInProgress,
        completed=ev.McpListToolsCompleted,
        failed=ev.McpListToolsFailed,
        empty={"tools": [], "error": UNSET},
        cut={"error": NOT_LISTED},
    ),
    WebSearchCall: Kind(
        begins=ev.WebSearchCallInProgress,
        stages={"searching": ev.WebSearchCallSearching},
        completed=ev.WebSearchCallCompleted,
        empty=_BEGUN | {"results": UNSET},
        cut=_CUT,
    ),
    FileSearchCall: Kind(
        begins=ev.FileSearchCallInProgress,
        stages={"searching": ev.FileSearchCallSearching},
        completed=ev.FileSearchCallCompleted,
        empty=_BEGUN | {"results": None},
        cut=_CUT,
    ),
    CodeInterpreterCall: Kind(
        begins=ev.CodeInterpreterCallInProgress,
        stages={"interpreting": ev.CodeInterpreterCallInterpreting},
        completed=ev.CodeInterpreterCallCompleted,
        whole=Whole("code", ev.CodeInterpreterCallCodeDelta, ev.CodeInterpreterCallCodeDone),
        empty=_BEGUN | {"code": "", "outputs": None},
        cut=_CUT,
    ),
    ImageGenerationCall: Kind(
        begins=ev.ImageGenerationCallInProgress,
        stages={"generating": ev.ImageGenerationCallGenerating},
        completed=ev.ImageGenerationCallCompleted,
        empty=_BEGUN | {"result": None, "revised_prompt": UNSET, "error": UNSET, "svg_usage": UNSET},
        cut={"status": "failed"},  # it has no other word for it
    ),
    Compaction: Kind(begins=ev.CompactionCompacting, empty={"encrypted_content": ""}, cut={}),
}

_DONE_FOR_IT = frozenset({*KINDS, FunctionCallOutput, CustomToolCallOutput}) - {Compaction}


def is_served(item: OutputItem) -> TypeGuard[ServerItem]:
    return type(item) in KINDS


def bare(item: _Served, item_id: str) -> _Served:
    """As it looks when it is added."""
    return replace(item, id=item_id, **KINDS[type(item)].empty, **_action(item))


def shown(item: ServerItem) -> ServerItem:
    """All of it that is told when it begins: two items of which this is the same begin with the same events."""
    whole = KINDS[type(item)].whole
    return bare(item, "") if whole is None else replace(bare(item, ""), **{whole.field: getattr(item, whole.field)})


def item_added(item: ServerItem, place: Place) -> list[ev.Event]:
    item_id, index = place
    begins = KINDS[type(item)].begins(item_id=item_id, output_index=index)
    return [ev.OutputItemAdded(output_index=index, item=bare(item, item_id)), begins]


def begun(item: ServerItem, place: Place) -> list[ev.Event]:
    """Added, and what of it is told whole."""
    item_id, index = place
    events, whole = item_added(item, place), KINDS[type(item)].whole
    if whole is None or (text := getattr(item, whole.field)) is None:
        return events
    if text:
        events.append(whole.delta(item_id=item_id, output_index=index, delta=text))
    return [*events, whole.done(item_id=item_id, output_index=index, **{whole.field: text})]


def ended(item: _Served, place: Place) -> list[ev.Event]:
    """`item` is whole, but for its id. What has a status has one now."""
    item_id, index = place
    kind, works = KINDS[type(item)], worked(item)
    if getattr(item, "status", None) is UNSET:
        item = replace(item, status="completed" if works else "failed")
    events: list[ev.Event] = [ev.OutputItemDone(output_index=index, item=replace(item, id=item_id))]
    if (step := kind.completed if works else kind.failed) is not None:
        events.insert(0, step(item_id=item_id, output_index=index))
    return events


def cut_short(item: ServerItem) -> ServerItem:
    """How it ended if the response ended before it did. Cut again it is the same."""
    return replace(shown(item), **KINDS[type(item)].cut)


def worked(item: ServerItem) -> bool:
    """Did it do what it was to do?"""
    return getattr(item, "error", None) in (None, UNSET) and getattr(item, "status", UNSET) in ("completed", UNSET)


def says_nothing(output: Sequence[OutputItem]) -> bool:
    """The model had the last word and did not use it: there is nothing, or what was done for it is the last thing.

    A compaction may be all that was asked for.
    """
    if not output:
        return True
    if type(output[-1]) not in _DONE_FOR_IT:
        return False
    answered = {item.call_id for item in output if isinstance(item, _Answer)}
    return not any(isinstance(item, McpApprovalRequest) or _waits(item, answered) for item in output)


def _waits(item: OutputItem, answered: Container[str | UnsetType]) -> bool:
    """Is it a call that the client has yet to carry out?"""
    return isinstance(item, FunctionCall | CustomToolCall | ClientItem) and item.call_id not in answered


def put(item: PutItem, place: Place) -> list[ev.Event]:
    item_id, index = place
    whole = replace(item, id=item_id)
    if isinstance(whole, _Answer) and whole.status is UNSET:
        whole.status = "completed"
    return [ev.OutputItemAdded(output_index=index, item=whole), ev.OutputItemDone(output_index=index, item=whole)]


def _action(item: ServerItem) -> dict[str, Any]:
    """What a search has found is not known when it begins."""
    if isinstance(item, WebSearchCall) and isinstance(item.action, SearchAction):
        return {"action": replace(item.action, sources=UNSET)}
    return {}


_KINDS = frozenset({ShellCall, LocalShellCall, ApplyPatchCall, ToolSearchCall})


def is_clients(item: OutputItem) -> TypeGuard[ClientItem]:
    return type(item) in _KINDS


def unnamed(item: ClientItem) -> ClientItem:
    """As it is before the emitter has named it."""
    return replace(item, call_id="")


def called(item: ClientItem, place: Place, call_id: str) -> list[ev.Event]:
    item_id, index = place
    whole = replace(item, id=item_id, call_id=call_id)
    begun = replace(whole, status="in_progress")
    steps: list[ev.Event] = []
    if isinstance(begun, ShellCall):
        steps = [step for number, text in enumerate(begun.action.commands) for step in _command(index, number, text)]
        begun.action = replace(begun.action, commands=[])
    done = ev.OutputItemDone(output_index=index, item=whole)
    return [ev.OutputItemAdded(output_index=index, item=begun), *steps, done]


def _command(index: int, number: int, text: str) -> list[ev.Event]:
    added = ev.ShellCallCommandAdded(output_index=index, command_index=number, command="")
    delta = ev.ShellCallCommandDelta(output_index=index, command_index=number, delta=text)
    return [added, delta, ev.ShellCallCommandDone(output_index=index, command_index=number, command=text)]
