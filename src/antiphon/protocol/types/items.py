"""All items of a conversation: one class per wire type, for requests and responses alike.

Items in a response have an id and, if their type has one, a status; in a request both are optional. Items of tools
other than functions (searches, code, images, computers, shells, patches and MCP) pass through this server unchanged.
"""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

from antiphon.protocol.types import parts as pt
from antiphon.protocol.types.parts import Int64, Tagged
from antiphon.protocol.types.tools import ContainerReference, Json, LocalEnvironment, Tool

Status = Literal["in_progress", "completed", "incomplete"]
Role = Literal["user", "assistant", "system", "developer"]
Phase = Literal["commentary", "final_answer"]


class Item(Struct, kw_only=True, tag_field="type"):
    """One entry of a conversation. Stored items have ids of the server; a client's id is valid within its request."""

    id: str | UnsetType = UNSET


class DirectCaller(Tagged, tag="direct", kw_only=True): ...


class ProgramCaller(Tagged, tag="program", kw_only=True):
    caller_id: str


Caller = DirectCaller | ProgramCaller


class Message(Item, tag="message", kw_only=True):
    status: Status | UnsetType = UNSET
    role: Role
    content: list[pt.MessagePart]
    phase: Phase | UnsetType = UNSET


class Reasoning(Item, tag="reasoning", kw_only=True):
    status: Status | UnsetType = UNSET
    summary: list[pt.SummaryText] = field(default_factory=list)
    content: list[pt.ReasoningText] | UnsetType = UNSET
    encrypted_content: str | UnsetType = UNSET


class FunctionCall(Item, tag="function_call", kw_only=True):
    status: Status | UnsetType = UNSET
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET
    caller: Caller | UnsetType = UNSET
    asynchronous: bool | UnsetType = field(default=UNSET, name="async")


class FunctionCallOutput(Item, tag="function_call_output", kw_only=True):
    status: Status | UnsetType = UNSET
    call_id: str | UnsetType = UNSET
    output: str | list[pt.ToolOutputPart]
    name: str | UnsetType = UNSET
    namespace: str | UnsetType = UNSET
    caller: Caller | UnsetType = UNSET


class CustomToolCall(Item, tag="custom_tool_call", kw_only=True):
    status: Status | UnsetType = UNSET
    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET
    caller: Caller | UnsetType = UNSET
    asynchronous: bool | UnsetType = field(default=UNSET, name="async")


class CustomToolCallOutput(Item, tag="custom_tool_call_output", kw_only=True):
    status: Status | UnsetType = UNSET
    call_id: str
    output: str | list[pt.ToolOutputPart]
    name: str | UnsetType = UNSET
    namespace: str | UnsetType = UNSET
    caller: Caller | UnsetType = UNSET


class ToolSearchCall(Item, tag="tool_search_call", kw_only=True):
    status: Status | UnsetType = UNSET
    call_id: str | None = None
    execution: Literal["server", "client"] = "server"
    arguments: Any


class ToolSearchOutput(Item, tag="tool_search_output", kw_only=True):
    status: Status | UnsetType = UNSET
    call_id: str | None = None
    execution: Literal["server", "client"] = "server"
    tools: list[Tool]


class AdditionalTools(Item, tag="additional_tools", kw_only=True):
    role: str = "developer"
    tools: list[Tool]


class Compaction(Item, tag="compaction", kw_only=True):
    encrypted_content: str


class CompactionTrigger(Item, tag="compaction_trigger", kw_only=True): ...


class ConfigurationUpdate(Item, tag="configuration_update", kw_only=True):
    reasoning: Json | UnsetType = UNSET
    text: Json | UnsetType = UNSET


class Program(Item, tag="program", kw_only=True):
    call_id: str
    code: str
    fingerprint: str


class ProgramOutput(Item, tag="program_output", kw_only=True):
    call_id: str
    result: str
    status: Literal["completed", "incomplete"]


class ItemReference(Item, tag="item_reference", kw_only=True):
    """A reference to a stored item. The id is required."""


class FileSearchResult(Struct, kw_only=True):
    file_id: str | UnsetType = UNSET
    filename: str | UnsetType = UNSET
    score: float | UnsetType = UNSET
    text: str | UnsetType = UNSET
    attributes: dict[str, str | float | bool] | None = None


class FileSearchCall(Item, tag="file_search_call", kw_only=True):
    status: Literal["in_progress", "searching", "completed", "incomplete", "failed"]
    queries: list[str]
    results: list[FileSearchResult] | None = None


class Source(Struct, kw_only=True):
    type: Literal["url"] = "url"
    url: str


class SearchAction(Tagged, tag="search", kw_only=True):
    query: str | UnsetType = UNSET
    queries: list[str] | UnsetType = UNSET
    sources: list[Source] | UnsetType = UNSET


class OpenPageAction(Tagged, tag="open_page", kw_only=True):
    url: str | UnsetType = UNSET


class FindAction(Tagged, tag="find_in_page", kw_only=True):
    url: str | UnsetType = UNSET
    pattern: str = ""


class WebSearchResult(Struct, kw_only=True):
    url: str
    title: str = ""
    snippet: str = ""


class WebSearchCall(Item, tag="web_search_call", kw_only=True):
    status: Literal["in_progress", "searching", "completed", "incomplete", "failed"]
    action: SearchAction | OpenPageAction | FindAction | UnsetType = UNSET
    results: list[WebSearchResult] | UnsetType = UNSET  # only with `web_search_call.results` in `include`


class SafetyCheck(Struct, kw_only=True):
    id: str
    code: str | None = None
    message: str | None = None


class ComputerCall(Item, tag="computer_call", kw_only=True):
    call_id: str
    status: Status | UnsetType = UNSET
    action: pt.ComputerAction | UnsetType = UNSET  # of computer_use_preview
    actions: list[pt.ComputerAction] | UnsetType = UNSET  # of computer
    pending_safety_checks: list[SafetyCheck] = field(default_factory=list)


class ComputerCallOutput(Item, tag="computer_call_output", kw_only=True):
    call_id: str
    status: Literal["in_progress", "completed", "incomplete", "failed"] | UnsetType = UNSET
    output: pt.Screenshot
    acknowledged_safety_checks: list[SafetyCheck] | UnsetType = UNSET


class CodeLogs(Tagged, tag="logs", kw_only=True):
    logs: str


class CodeImage(Tagged, tag="image", kw_only=True):
    url: str


class CodeInterpreterCall(Item, tag="code_interpreter_call", kw_only=True):
    status: Literal["in_progress", "completed", "incomplete", "interpreting", "failed"] | UnsetType = UNSET
    container_id: str
    code: str | None = None
    outputs: list[CodeLogs | CodeImage] | None = None


class ImageGenerationCall(Item, tag="image_generation_call", kw_only=True):
    status: Literal["in_progress", "generating", "completed", "failed"] | UnsetType = UNSET
    result: str | UnsetType | None = None  # in base64
    revised_prompt: str | UnsetType = UNSET
    action: Literal["generate", "edit", "auto"] | UnsetType = UNSET
    background: Literal["transparent", "opaque", "auto"] | UnsetType = UNSET
    output_format: Literal["png", "webp", "jpeg", "gif", "svg"] | UnsetType = UNSET
    quality: str | UnsetType = UNSET
    size: str | UnsetType = UNSET
    error: Json | UnsetType = UNSET
    svg_usage: Json | UnsetType = UNSET


class LocalShellAction(Struct, kw_only=True):
    """The command of a local shell call. Fields that are not set are omitted: some clients reject null here."""

    type: Literal["exec"] = "exec"
    command: list[str]
    env: dict[str, str] = {}
    timeout_ms: Int64 | UnsetType | None = UNSET
    user: str | UnsetType | None = UNSET
    working_directory: str | UnsetType | None = UNSET


class LocalShellCall(Item, tag="local_shell_call", kw_only=True):
    call_id: str
    status: Status | UnsetType = UNSET
    action: LocalShellAction


class LocalShellCallOutput(Item, tag="local_shell_call_output", kw_only=True):
    call_id: str | UnsetType = UNSET  # older clients send it; newer ones send the call's id as `id`
    status: Status | UnsetType = UNSET
    output: str


class ShellAction(Struct, kw_only=True):
    commands: list[str]
    timeout_ms: Int64 | None = None
    max_output_length: Int64 | None = None


class ShellCall(Item, tag="shell_call", kw_only=True):
    call_id: str
    status: Status | UnsetType = UNSET
    action: ShellAction
    environment: LocalEnvironment | ContainerReference | None = None
    caller: Caller | UnsetType = UNSET


class ExitOutcome(Tagged, tag="exit", kw_only=True):
    exit_code: Int64


class TimeoutOutcome(Tagged, tag="timeout", kw_only=True): ...


class ShellOutput(Struct, kw_only=True):
    stdout: str
    stderr: str
    outcome: ExitOutcome | TimeoutOutcome


class ShellCallOutput(Item, tag="shell_call_output", kw_only=True):
    call_id: str
    status: Status | UnsetType = UNSET
    output: list[ShellOutput]
    max_output_length: Int64 | None = None
    caller: Caller | UnsetType = UNSET


class CreateFile(Tagged, tag="create_file", kw_only=True):
    path: str
    diff: str


class UpdateFile(Tagged, tag="update_file", kw_only=True):
    path: str
    diff: str


class DeleteFile(Tagged, tag="delete_file", kw_only=True):
    path: str


class ApplyPatchCall(Item, tag="apply_patch_call", kw_only=True):
    call_id: str
    status: Literal["in_progress", "completed"]
    operation: CreateFile | UpdateFile | DeleteFile
    caller: Caller | UnsetType = UNSET


class ApplyPatchCallOutput(Item, tag="apply_patch_call_output", kw_only=True):
    call_id: str
    status: Literal["completed", "failed"]
    output: str | UnsetType = UNSET
    caller: Caller | UnsetType = UNSET


class McpProtocolError(Tagged, tag="mcp_protocol_error", kw_only=True):
    code: Int64
    message: str


class McpHttpError(Tagged, tag="http_error", kw_only=True):
    code: Int64
    message: str


class McpToolError(Tagged, tag="mcp_tool_execution_error", kw_only=True):
    content: Any


class McpCall(Item, tag="mcp_call", kw_only=True):
    status: Literal["in_progress", "calling", "completed", "incomplete", "failed"] | UnsetType = UNSET
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: McpProtocolError | McpHttpError | McpToolError | None = None
    approval_request_id: str | None = None


class McpListedTool(Struct, kw_only=True):
    name: str
    input_schema: Any
    description: str | UnsetType = UNSET
    annotations: Json | UnsetType = UNSET


class McpListTools(Item, tag="mcp_list_tools", kw_only=True):
    server_label: str
    tools: list[McpListedTool]
    error: str | UnsetType = UNSET


class McpApprovalRequest(Item, tag="mcp_approval_request", kw_only=True):
    server_label: str
    name: str
    arguments: str


class McpApprovalResponse(Item, tag="mcp_approval_response", kw_only=True):
    approval_request_id: str
    approve: bool
    reason: str | UnsetType = UNSET


_FunctionItem = FunctionCall | FunctionCallOutput | CustomToolCall | CustomToolCallOutput
_SearchItem = FileSearchCall | WebSearchCall | ToolSearchCall | ToolSearchOutput
_CodeItem = CodeInterpreterCall | ImageGenerationCall | ComputerCall | ComputerCallOutput | Program | ProgramOutput
_ShellItem = LocalShellCall | LocalShellCallOutput | ShellCall | ShellCallOutput | ApplyPatchCall | ApplyPatchCallOutput
_McpItem = McpCall | McpListTools | McpApprovalRequest | McpApprovalResponse
_ToolItem = _FunctionItem | _SearchItem | _CodeItem | _ShellItem | _McpItem
OutputItem = Message | Reasoning | _ToolItem | AdditionalTools | Compaction
InputItem = OutputItem | CompactionTrigger | ConfigurationUpdate | ItemReference
