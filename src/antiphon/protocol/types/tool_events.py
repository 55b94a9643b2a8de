"""Events of tools other than functions (MCP, searches, code, images, shells), of compaction and of audio."""

from msgspec import UNSET, Struct, UnsetType

from antiphon.protocol.types.builtin_items import ShellOutput
from antiphon.protocol.types.events import Event, ItemEvent


class McpCallArgumentsDelta(ItemEvent, tag="response.mcp_call_arguments.delta", kw_only=True, gc=False):
    delta: str
    obfuscation: str | UnsetType = UNSET


class McpCallArgumentsDone(ItemEvent, tag="response.mcp_call_arguments.done", kw_only=True, gc=False):
    arguments: str


class McpCallInProgress(ItemEvent, tag="response.mcp_call.in_progress", kw_only=True):
    pass


class McpCallCompleted(ItemEvent, tag="response.mcp_call.completed", kw_only=True):
    pass


class McpCallFailed(ItemEvent, tag="response.mcp_call.failed", kw_only=True):
    pass


class McpListToolsInProgress(ItemEvent, tag="response.mcp_list_tools.in_progress", kw_only=True):
    pass


class McpListToolsCompleted(ItemEvent, tag="response.mcp_list_tools.completed", kw_only=True):
    pass


class McpListToolsFailed(ItemEvent, tag="response.mcp_list_tools.failed", kw_only=True):
    pass


class CodeInterpreterCallInProgress(ItemEvent, tag="response.code_interpreter_call.in_progress", kw_only=True):
    pass


class CodeInterpreterCallInterpreting(ItemEvent, tag="response.code_interpreter_call.interpreting", kw_only=True):
    pass


class CodeInterpreterCallCompleted(ItemEvent, tag="response.code_interpreter_call.completed", kw_only=True):
    pass


class CodeInterpreterCallCodeDelta(ItemEvent, tag="response.code_interpreter_call_code.delta", kw_only=True, gc=False):
    delta: str
    obfuscation: str | UnsetType = UNSET


class CodeInterpreterCallCodeDone(ItemEvent, tag="response.code_interpreter_call_code.done", kw_only=True, gc=False):
    code: str


class WebSearchCallInProgress(ItemEvent, tag="response.web_search_call.in_progress", kw_only=True):
    pass


class WebSearchCallSearching(ItemEvent, tag="response.web_search_call.searching", kw_only=True):
    pass


class WebSearchCallCompleted(ItemEvent, tag="response.web_search_call.completed", kw_only=True):
    pass


class FileSearchCallInProgress(ItemEvent, tag="response.file_search_call.in_progress", kw_only=True):
    pass


class FileSearchCallSearching(ItemEvent, tag="response.file_search_call.searching", kw_only=True):
    pass


class FileSearchCallCompleted(ItemEvent, tag="response.file_search_call.completed", kw_only=True):
    pass


class ImageGenerationCallInProgress(ItemEvent, tag="response.image_generation_call.in_progress", kw_only=True):
    pass


class ImageGenerationCallGenerating(ItemEvent, tag="response.image_generation_call.generating", kw_only=True):
    pass


class ImageGenerationCallCompleted(ItemEvent, tag="response.image_generation_call.completed", kw_only=True):
    pass


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


class CompactionCompacting(ItemEvent, tag="response.compaction.compacting", kw_only=True):
    pass


class AudioDelta(Event, tag="response.audio.delta", kw_only=True):
    delta: str


class AudioDone(Event, tag="response.audio.done", kw_only=True):
    pass


class AudioTranscriptDelta(Event, tag="response.audio.transcript.delta", kw_only=True):
    delta: str


class AudioTranscriptDone(Event, tag="response.audio.transcript.done", kw_only=True):
    pass
