"""Events of tools other than functions (MCP, searches, code, images, shells), of compaction and of audio.

`StreamEvent` is the union of all events of a response stream.
"""

from functools import reduce
from operator import or_
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from antiphon.protocol.types import events
from antiphon.protocol.types.events import Event, ItemDelta, ItemEvent, define_event
from antiphon.protocol.types.items import ShellOutput

McpCallInProgress = define_event(ItemEvent, "mcp_call.in_progress")
McpCallCompleted = define_event(ItemEvent, "mcp_call.completed")
McpCallFailed = define_event(ItemEvent, "mcp_call.failed")
McpListToolsInProgress = define_event(ItemEvent, "mcp_list_tools.in_progress")
McpListToolsCompleted = define_event(ItemEvent, "mcp_list_tools.completed")
McpListToolsFailed = define_event(ItemEvent, "mcp_list_tools.failed")
CodeInterpreterCallInProgress = define_event(ItemEvent, "code_interpreter_call.in_progress")
CodeInterpreterCallInterpreting = define_event(ItemEvent, "code_interpreter_call.interpreting")
CodeInterpreterCallCompleted = define_event(ItemEvent, "code_interpreter_call.completed")
WebSearchCallInProgress = define_event(ItemEvent, "web_search_call.in_progress")
WebSearchCallSearching = define_event(ItemEvent, "web_search_call.searching")
WebSearchCallCompleted = define_event(ItemEvent, "web_search_call.completed")
FileSearchCallInProgress = define_event(ItemEvent, "file_search_call.in_progress")
FileSearchCallSearching = define_event(ItemEvent, "file_search_call.searching")
FileSearchCallCompleted = define_event(ItemEvent, "file_search_call.completed")
ImageGenerationCallInProgress = define_event(ItemEvent, "image_generation_call.in_progress")
ImageGenerationCallGenerating = define_event(ItemEvent, "image_generation_call.generating")
ImageGenerationCallCompleted = define_event(ItemEvent, "image_generation_call.completed")
CompactionCompacting = define_event(ItemEvent, "compaction.compacting")
McpCallArgumentsDelta = define_event(ItemDelta, "mcp_call_arguments.delta")
CodeInterpreterCallCodeDelta = define_event(ItemDelta, "code_interpreter_call_code.delta")


class McpCallArgumentsDone(ItemEvent, tag="response.mcp_call_arguments.done", kw_only=True):
    arguments: str


class CodeInterpreterCallCodeDone(ItemEvent, tag="response.code_interpreter_call_code.done", kw_only=True):
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


class CommandText(CommandEvent, kw_only=True):
    command: str


class ShellCallCommandDelta(CommandEvent, tag="response.shell_call_command.delta", kw_only=True):
    delta: str
    obfuscation: str | UnsetType = UNSET


ShellCallCommandAdded = define_event(CommandText, "shell_call_command.added")
ShellCallCommandDone = define_event(CommandText, "shell_call_command.done")


class ShellOutputDelta(Struct, kw_only=True):
    stdout: str | UnsetType = UNSET
    stderr: str | UnsetType = UNSET


_OUTPUT = "shell_call_output_content"
ShellCallOutputContentDelta = define_event(
    ItemEvent, f"{_OUTPUT}.delta", ("command_index", int), ("delta", ShellOutputDelta)
)
ShellCallOutputContentDone = define_event(
    ItemEvent, f"{_OUTPUT}.done", ("command_index", int), ("output", list[ShellOutput])
)
AudioDelta = define_event(Event, "audio.delta", ("delta", str))
AudioDone = define_event(Event, "audio.done")
AudioTranscriptDelta = define_event(Event, "audio.transcript.delta", ("delta", str))
AudioTranscriptDone = define_event(Event, "audio.transcript.done")


def _list_events(namespace: dict[str, Any]) -> list[type[Event]]:
    """Return the events of a module. The tag of a base class is its own name, by msgspec's default."""
    classes = [value for value in namespace.values() if isinstance(value, type) and issubclass(value, Event)]
    return [event for event in classes if event.__struct_config__.tag != event.__name__]


StreamEvent: Any = reduce(or_, [*_list_events(vars(events)), *_list_events(globals())])  # for /openapi.json
