"""The kinds of items that the server produces itself: which events each emits, and how it looks at its start and end.

One row per kind in `SERVER_ITEM_KINDS`:

    mcp_call                added → in_progress → arguments delta* → arguments done → completed | failed → done
    mcp_list_tools          added → in_progress → completed | failed → done
    web_, file_search_call  added → in_progress → searching → completed → done
    code_interpreter_call   added → in_progress → code delta* → code done → interpreting → completed → done
    image_generation_call   added → in_progress → generating → partial_image* → completed → done
    compaction              added → compacting → done
    shell_call_output       added → [content delta* → content done]* → done, after its shell_call

Where OpenAI defines no failure event, only the item reports the failure.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from msgspec import UNSET, Struct

from antiphon.core.deltas import CallStarted, ServerItem
from antiphon.protocol.types import events as ev
from antiphon.protocol.types import items as it
from antiphon.protocol.types import tool_events as tool_ev

ItemEventType = type[ev.ItemEvent]

NOT_LISTED = "The tools were not listed: the response ended before."


class StreamedField(Struct, frozen=True):
    """A field that is empty in the added item and follows in delta and done events; one delta if known at the start."""

    field: str
    delta: Callable[..., ev.Event]
    done: Callable[..., ev.Event]


class ServerItemKind(Struct, frozen=True, kw_only=True):
    """Events and field values of one kind of server item."""

    started: ItemEventType | None = None
    stages: Mapping[str, ItemEventType] = {}  # event types by `Progress.stage`
    completed: ItemEventType | None = None
    failed: ItemEventType | None = None
    streamed: StreamedField | None = None
    initial: Mapping[str, Any]  # values of fields that are unknown when the item is added
    truncated: Mapping[str, Any]  # values of fields if the response ends before the item


_IN_PROGRESS = {"status": "in_progress"}
_INCOMPLETE = {"status": "incomplete"}

SERVER_ITEM_KINDS: Mapping[type, ServerItemKind] = {
    it.McpCall: ServerItemKind(
        started=tool_ev.McpCallInProgress,
        stages={"progress": tool_ev.McpCallInProgress},  # MCP has no progress event of its own
        completed=tool_ev.McpCallCompleted,
        failed=tool_ev.McpCallFailed,
        streamed=StreamedField("arguments", tool_ev.McpCallArgumentsDelta, tool_ev.McpCallArgumentsDone),
        initial=_IN_PROGRESS | {"arguments": "", "output": None, "error": None},
        truncated=_INCOMPLETE,
    ),
    it.McpListTools: ServerItemKind(
        started=tool_ev.McpListToolsInProgress,
        completed=tool_ev.McpListToolsCompleted,
        failed=tool_ev.McpListToolsFailed,
        initial={"tools": [], "error": UNSET},
        truncated={"error": NOT_LISTED},
    ),
    it.WebSearchCall: ServerItemKind(
        started=tool_ev.WebSearchCallInProgress,
        stages={"searching": tool_ev.WebSearchCallSearching},
        completed=tool_ev.WebSearchCallCompleted,
        initial=_IN_PROGRESS | {"results": UNSET},
        truncated=_INCOMPLETE,
    ),
    it.FileSearchCall: ServerItemKind(
        started=tool_ev.FileSearchCallInProgress,
        stages={"searching": tool_ev.FileSearchCallSearching},
        completed=tool_ev.FileSearchCallCompleted,
        initial=_IN_PROGRESS | {"results": None},
        truncated=_INCOMPLETE,
    ),
    it.CodeInterpreterCall: ServerItemKind(
        started=tool_ev.CodeInterpreterCallInProgress,
        stages={"interpreting": tool_ev.CodeInterpreterCallInterpreting},
        completed=tool_ev.CodeInterpreterCallCompleted,
        streamed=StreamedField("code", tool_ev.CodeInterpreterCallCodeDelta, tool_ev.CodeInterpreterCallCodeDone),
        initial=_IN_PROGRESS | {"code": "", "outputs": None},
        truncated=_INCOMPLETE,
    ),
    it.ImageGenerationCall: ServerItemKind(
        started=tool_ev.ImageGenerationCallInProgress,
        stages={"generating": tool_ev.ImageGenerationCallGenerating},
        completed=tool_ev.ImageGenerationCallCompleted,
        initial=_IN_PROGRESS | {"result": UNSET, "revised_prompt": UNSET, "error": UNSET, "svg_usage": UNSET},
        truncated={"status": "failed", "result": None},  # this item type has no status `incomplete`
    ),
    it.ShellCallOutput: ServerItemKind(initial=_IN_PROGRESS | {"output": []}, truncated=_INCOMPLETE),
    it.Compaction: ServerItemKind(
        started=tool_ev.CompactionCompacting, initial={"encrypted_content": ""}, truncated={}
    ),
}


def make_call_item(started: CallStarted) -> it.McpCall | it.CodeInterpreterCall:
    """Return the item of a call that the server runs and whose arguments are streamed, without them."""
    namespace = started.namespace or ""
    if started.kind == "code_interpreter":
        outputs: list[it.CodeLogs | it.CodeImage] | None = [] if started.lists_outputs else None
        return it.CodeInterpreterCall(container_id=namespace, code="", outputs=outputs)
    return it.McpCall(server_label=namespace, name=started.name, arguments="", approval_request_id=started.approval)


def is_server_item(item: it.OutputItem) -> TypeGuard[ServerItem]:
    return type(item) in SERVER_ITEM_KINDS
