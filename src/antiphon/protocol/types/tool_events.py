"""Events of tools other than functions (MCP, searches, code, images, shells), of compaction and of audio.

`StreamEvent` is the union of all events of a response stream.
"""

from functools import reduce
from operator import or_
from typing import Any, cast

from msgspec import UNSET, Struct, UnsetType, defstruct

from antiphon.protocol.types import events
from antiphon.protocol.types.events import Event, ItemEvent
from antiphon.protocol.types.items import ShellOutput


def _define(kind: str) -> type[ItemEvent]:
    """Define the event `response.{kind}`, without fields of its own. Like all events it is named after its type."""
    name = kind.replace(".", "_").title().replace("_", "")
    event = defstruct(name, [], bases=(ItemEvent,), tag=f"response.{kind}", kw_only=True, module=__name__)
    return cast(type[ItemEvent], event)


McpCallInProgress = _define("mcp_call.in_progress")
McpCallCompleted = _define("mcp_call.completed")
McpCallFailed = _define("mcp_call.failed")
McpListToolsInProgress = _define("mcp_list_tools.in_progress")
McpListToolsCompleted = _define("mcp_list_tools.completed")
McpListToolsFailed = _define("mcp_list_tools.failed")
CodeInterpreterCallInProgress = _define("code_interpreter_call.in_progress")
CodeInterpreterCallInterpreting = _define("code_interpreter_call.interpreting")
CodeInterpreterCallCompleted = _define("code_interpreter_call.completed")
WebSearchCallInProgress = _define("web_search_call.in_progress")
WebSearchCallSearching = _define("web_search_call.searching")
WebSearchCallCompleted = _define("web_search_call.completed")
FileSearchCallInProgress = _define("file_search_call.in_progress")
FileSearchCallSearching = _define("file_search_call.searching")
FileSearchCallCompleted = _define("file_search_call.completed")
ImageGenerationCallInProgress = _define("image_generation_call.in_progress")
ImageGenerationCallGenerating = _define("image_generation_call.generating")
ImageGenerationCallCompleted = _define("image_generation_call.completed")
CompactionCompacting = _define("compaction.compacting")


class McpCallArgumentsDelta(ItemEvent, tag="response.mcp_call_arguments.delta", kw_only=True, gc=False):
    delta: str
    obfuscation: str | UnsetType = UNSET


class McpCallArgumentsDone(ItemEvent, tag="response.mcp_call_arguments.done", kw_only=True, gc=False):
    arguments: str


class CodeInterpreterCallCodeDelta(ItemEvent, tag="response.code_interpreter_call_code.delta", kw_only=True, gc=False):
    delta: str
    obfuscation: str | UnsetType = UNSET


class CodeInterpreterCallCodeDone(ItemEvent, tag="response.code_interpreter_call_code.done", kw_only=True, gc=False):
    code: str


class ImageGenerationCallPartialImage(ItemEvent, tag="response.image_generation_call.partial_image", kw_only=True):
    partial_image_index: int
    partial_image_b64: str
    size: str | UnsetType = UNSET
    quality: str | UnsetType = UNSET
    background: str | UnsetType = UNSET
    output_format: str | UnsetType = UNSET


class CommandEvent(Event, kw_only=True):
    """An event of one shell command, identified by its index: OpenAI's events have no item_id here."""

    output_index: int
    command_index: int


class ShellCallCommandAdded(CommandEvent, tag="response.shell_call_command.added", kw_only=True):
    command: str


class ShellCallCommandDelta(CommandEvent, tag="response.shell_call_command.delta", kw_only=True):
    delta: str
    obfuscation: str | UnsetType = UNSET


class ShellCallCommandDone(CommandEvent, tag="response.shell_call_command.done", kw_only=True):
    command: str


class ShellOutputDelta(Struct, kw_only=True):
    stdout: str | UnsetType = UNSET
    stderr: str | UnsetType = UNSET


class ShellCallOutputContentDelta(ItemEvent, tag="response.shell_call_output_content.delta", kw_only=True):
    command_index: int
    delta: ShellOutputDelta


class ShellCallOutputContentDone(ItemEvent, tag="response.shell_call_output_content.done", kw_only=True):
    command_index: int
    output: list[ShellOutput]


class AudioDelta(Event, tag="response.audio.delta", kw_only=True):
    delta: str


class AudioDone(Event, tag="response.audio.done", kw_only=True):
    pass


class AudioTranscriptDelta(Event, tag="response.audio.transcript.delta", kw_only=True):
    delta: str


class AudioTranscriptDone(Event, tag="response.audio.transcript.done", kw_only=True):
    pass


def _list_events(namespace: dict[str, Any]) -> list[type[Event]]:
    """Return the events of a module. The tag of a base class is its own name, by msgspec's default."""
    classes = [value for value in namespace.values() if isinstance(value, type) and issubclass(value, Event)]
    return [event for event in classes if event.__struct_config__.tag != event.__name__]


StreamEvent: Any = reduce(or_, [*_list_events(vars(events)), *_list_events(globals())])  # for /openapi.json
