"""Views of a response: fields that items show only if included, input that the client must provide, and chat messages.

Image URLs, search results and code outputs are always stored and sent to models; `include` selects which of them the
client gets back. `required_input` lists stubs of the outputs and approvals that the response waits for.
`output_messages` converts the output to chat messages that can be sent as earlier messages.
"""

from collections.abc import Collection, Sequence
from typing import Final

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.protocol.types import items as it
from antiphon.protocol.types.parts import InputImage, OutputText
from antiphon.protocol.types.tools import Json

IMAGES: Final = "message.input_image.image_url"
SCREENSHOTS: Final = "computer_call_output.output.image_url"
RESULTS: Final = "file_search_call.results"
OUTPUTS: Final = "code_interpreter_call.outputs"
# Bytes in the JSON of an item that has the field, by include value. Inside a text the quotes would be escaped.
JSON_MARKERS: Final = {
    IMAGES: b'"type":"input_image"',
    SCREENSHOTS: b'"type":"computer_screenshot"',
    RESULTS: b'"type":"file_search_call"',
    OUTPUTS: b'"type":"code_interpreter_call"',
}


def has_hidden_fields(body: bytes, include: Collection[str]) -> bool:
    """Check whether the JSON has fields that were not included."""
    return any(marker in body and target not in include for target, marker in JSON_MARKERS.items())


def hide_fields(item: it.InputItem, include: Collection[str]) -> it.InputItem:
    """Remove the fields of an item that were not included."""
    match item:
        case it.Message(content=content) if IMAGES not in include and InputImage in map(type, content):
            parts = [replace(part, image_url=UNSET) if isinstance(part, InputImage) else part for part in content]
            return replace(item, content=parts)
        case it.ComputerCallOutput(output=output) if SCREENSHOTS not in include:
            return replace(item, output=replace(output, image_url=UNSET))
        case it.FileSearchCall() if RESULTS not in include:
            return replace(item, results=None)
        case it.CodeInterpreterCall() if OUTPUTS not in include:
            return replace(item, outputs=None)
    return item


_OUTPUT_TYPES: Final = {
    it.FunctionCall: "function_call_output",
    it.CustomToolCall: "custom_tool_call_output",
    it.ShellCall: "shell_call_output",
    it.LocalShellCall: "local_shell_call_output",
    it.ApplyPatchCall: "apply_patch_call_output",
    it.ToolSearchCall: "tool_search_output",
    it.ComputerCall: "computer_call_output",
}


def required_input(output: Sequence[it.OutputItem]) -> list[Json]:
    """Return stubs of the call outputs and approval responses that the client must send."""
    return [stub for item in list_unanswered(output) if (stub := _stub(item))]


def list_unanswered(output: Sequence[it.OutputItem]) -> list[it.OutputItem]:
    """Return the items without the calls whose output follows."""
    outputs = (it.FunctionCallOutput, it.CustomToolCallOutput, it.ShellCallOutput)
    answered = {item.call_id for item in output if isinstance(item, outputs)}
    return [item for item in output if getattr(item, "call_id", UNSET) not in answered]


def _stub(item: it.OutputItem) -> Json | None:
    if isinstance(item, it.McpApprovalRequest):
        return {"type": "mcp_approval_response", "approval_request_id": item.id}
    if (kind := _OUTPUT_TYPES.get(type(item))) is None:
        return None
    stub: Json = {"type": kind, "call_id": getattr(item, "call_id", "")}
    if isinstance(item, it.FunctionCall):
        stub["name"] = item.name
    if isinstance(item, it.ToolSearchCall):
        stub["execution"] = "client"
    return stub


def output_messages(output: Sequence[it.OutputItem]) -> list[Json]:
    """Convert output items to chat messages. Of hosted tools only MCP calls are included: others lack their results."""
    messages: list[Json] = []
    reasoning = ""
    for item in output:
        if isinstance(item, it.Reasoning):
            reasoning = "\n\n".join(part.text for part in item.content or item.summary if part.text)
            continue
        call = _to_chat_call(item)
        if isinstance(item, it.Message) or (
            call and (reasoning or not messages or messages[-1]["role"] != "assistant")
        ):
            messages.append({"role": "assistant", "content": None})
            if reasoning:
                messages[-1]["reasoning_content"], reasoning = reasoning, ""
        if isinstance(item, it.Message):
            messages[-1]["content"] = "".join(part.text for part in item.content if isinstance(part, OutputText))
        elif call:
            messages[-1].setdefault("tool_calls", []).append(call)
        if isinstance(item, it.McpCall):
            messages.append({"role": "tool", "tool_call_id": item.id, "content": item.output or ""})
    return messages


def _to_chat_call(item: it.OutputItem) -> Json | None:
    match item:
        case (
            it.FunctionCall(call_id=call_id, name=name, arguments=text)
            | it.McpCall(id=call_id, name=name, arguments=text)
        ):
            return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
        case it.CustomToolCall(call_id=call_id, name=name, input=text):
            return {"id": call_id, "type": "custom", "custom": {"name": name, "input": text}}
    return None
