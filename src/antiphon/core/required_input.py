"""What a response waits for that its client has to give: outputs of calls and answers to questions, as stubs."""

from collections.abc import Sequence
from typing import Final

from msgspec import UNSET

from antiphon.protocol.items import (
    ApplyPatchCall,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    LocalShellCall,
    McpApprovalRequest,
    OutputItem,
    ShellCall,
    ToolSearchCall,
)
from antiphon.protocol.tools import Json

_ANSWERS: Final = {
    FunctionCall: "function_call_output",
    CustomToolCall: "custom_tool_call_output",
    ShellCall: "shell_call_output",
    LocalShellCall: "local_shell_call_output",
    ApplyPatchCall: "apply_patch_call_output",
    ToolSearchCall: "tool_search_output",
}


def required_input(output: Sequence[OutputItem]) -> list[Json]:
    answered = {item.call_id for item in output if isinstance(item, FunctionCallOutput | CustomToolCallOutput)}
    waiting = [item for item in output if getattr(item, "call_id", UNSET) not in answered]
    return [stub for item in waiting if (stub := _stub(item))]


def _stub(item: OutputItem) -> Json | None:
    if isinstance(item, McpApprovalRequest):
        return {"type": "mcp_approval_response", "approval_request_id": item.id}
    if (kind := _ANSWERS.get(type(item))) is None:
        return None
    stub: Json = {"type": kind, "call_id": getattr(item, "call_id", "")}
    if isinstance(item, FunctionCall):
        stub["name"] = item.name
    if isinstance(item, ToolSearchCall):
        stub["execution"] = "client"
    return stub
