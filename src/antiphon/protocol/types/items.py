"""All items of a conversation: one class per wire type, for requests and responses alike.

Items in a response have an id and, if their type has one, a status; in a request both are optional.
"""

from typing import Any, Literal

from msgspec import UNSET, UnsetType, field

from antiphon.protocol.types.builtin_items import (
    ApplyPatchCall,
    ApplyPatchCallOutput,
    CodeInterpreterCall,
    ComputerCall,
    ComputerCallOutput,
    FileSearchCall,
    ImageGenerationCall,
    LocalShellCall,
    LocalShellCallOutput,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpListTools,
    ShellCall,
    ShellCallOutput,
    WebSearchCall,
)
from antiphon.protocol.types.item_bases import Caller, Item, Status
from antiphon.protocol.types.parts import (
    Annotation,
    ContainerFileCitation,
    FileCitation,
    FilePath,
    InputAudio,
    InputFile,
    InputImage,
    InputText,
    MessagePart,
    OutputText,
    PlainText,
    ReasoningText,
    RefusalPart,
    Screenshot,
    SummaryText,
    ToolOutputPart,
    UrlCitation,
)
from antiphon.protocol.types.tools import Json, Tool

Role = Literal["user", "assistant", "system", "developer"]
Phase = Literal["commentary", "final_answer"]


class Message(Item, tag="message", kw_only=True):
    status: Status | UnsetType = UNSET
    role: Role
    content: list[MessagePart]
    phase: Phase | UnsetType = UNSET


class Reasoning(Item, tag="reasoning", kw_only=True):
    status: Status | UnsetType = UNSET
    summary: list[SummaryText] = field(default_factory=list)
    content: list[ReasoningText] | UnsetType = UNSET
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
    output: str | list[ToolOutputPart]
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
    output: str | list[ToolOutputPart]
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


class CompactionTrigger(Item, tag="compaction_trigger", kw_only=True):
    pass


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


OutputItem = (
    Message
    | Reasoning
    | FunctionCall
    | FunctionCallOutput
    | CustomToolCall
    | CustomToolCallOutput
    | FileSearchCall
    | WebSearchCall
    | ComputerCall
    | ComputerCallOutput
    | CodeInterpreterCall
    | ImageGenerationCall
    | LocalShellCall
    | LocalShellCallOutput
    | ShellCall
    | ShellCallOutput
    | ApplyPatchCall
    | ApplyPatchCallOutput
    | McpCall
    | McpListTools
    | McpApprovalRequest
    | McpApprovalResponse
    | ToolSearchCall
    | ToolSearchOutput
    | AdditionalTools
    | Compaction
    | Program
    | ProgramOutput
)
InputItem = OutputItem | CompactionTrigger | ConfigurationUpdate | ItemReference

__all__ = [
    "AdditionalTools",
    "Annotation",
    "ApplyPatchCall",
    "ApplyPatchCallOutput",
    "CodeInterpreterCall",
    "Compaction",
    "CompactionTrigger",
    "ComputerCall",
    "ComputerCallOutput",
    "ConfigurationUpdate",
    "ContainerFileCitation",
    "CustomToolCall",
    "CustomToolCallOutput",
    "FileCitation",
    "FilePath",
    "FileSearchCall",
    "FunctionCall",
    "FunctionCallOutput",
    "ImageGenerationCall",
    "InputAudio",
    "InputFile",
    "InputImage",
    "InputItem",
    "InputText",
    "Item",
    "ItemReference",
    "LocalShellCall",
    "LocalShellCallOutput",
    "McpApprovalRequest",
    "McpApprovalResponse",
    "McpCall",
    "McpListTools",
    "Message",
    "MessagePart",
    "OutputItem",
    "OutputText",
    "Phase",
    "PlainText",
    "Program",
    "ProgramOutput",
    "Reasoning",
    "ReasoningText",
    "RefusalPart",
    "Role",
    "Screenshot",
    "ShellCall",
    "ShellCallOutput",
    "Status",
    "SummaryText",
    "ToolOutputPart",
    "ToolSearchCall",
    "ToolSearchOutput",
    "UrlCitation",
    "WebSearchCall",
]
