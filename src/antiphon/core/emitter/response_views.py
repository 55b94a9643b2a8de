"""What items show only to those who include it: addresses of pictures, what a search found, what code gave.

All of it is kept and told to models. `include` says what a client gets back.

What a response waits for that its client has to give: outputs of calls and answers to questions, as stubs.

Output items → chat messages: what a model said, in the shape in which it may be sent as earlier messages.
"""

from collections.abc import Collection, Sequence
from typing import Any, Final

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.protocol.types.items import (
    ApplyPatchCall,
    CodeInterpreterCall,
    ComputerCallOutput,
    CustomToolCall,
    CustomToolCallOutput,
    FileSearchCall,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    LocalShellCall,
    McpApprovalRequest,
    McpCall,
    Message,
    OutputItem,
    Reasoning,
    ShellCall,
    ToolSearchCall,
)
from antiphon.protocol.types.parts import InputImage, MessagePart, OutputText
from antiphon.protocol.types.tools import Json

IMAGES: Final = "message.input_image.image_url"
SCREENSHOTS: Final = "computer_call_output.output.image_url"
RESULTS: Final = "file_search_call.results"
OUTPUTS: Final = "code_interpreter_call.outputs"
# In the JSON of an item that may show less, by the target that shows all of it; in a text the quotes would be escaped.
MARKS: Final = {
    IMAGES: b'"type":"input_image"',
    SCREENSHOTS: b'"type":"computer_screenshot"',
    RESULTS: b'"type":"file_search_call"',
    OUTPUTS: b'"type":"code_interpreter_call"',
}


def hides(body: bytes, include: Collection[str]) -> bool:
    """Is there anything that was not asked for?"""
    return any(mark in body and target not in include for target, mark in MARKS.items())


def within(item: InputItem, include: Collection[str]) -> InputItem:
    match item:
        case Message(content=content) if IMAGES not in include and InputImage in map(type, content):
            return replace(item, content=[*map(_without_address, content)])
        case ComputerCallOutput(output=output) if SCREENSHOTS not in include:
            return replace(item, output=replace(output, image_url=UNSET))
        case FileSearchCall() if RESULTS not in include:
            return replace(item, results=None)
        case CodeInterpreterCall() if OUTPUTS not in include:
            return replace(item, outputs=None)
    return item


def _without_address(part: MessagePart) -> MessagePart:
    return replace(part, image_url=UNSET) if isinstance(part, InputImage) else part


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


def output_messages(output: Sequence[OutputItem]) -> list[Json]:
    """What the server's own tools did is told of MCP alone: others' results are not in their items."""
    told = _Told()
    for item in output:
        match item:
            case Reasoning():
                told.think("\n\n".join(part.text for part in item.content or item.summary if part.text))
            case Message():
                told.say("".join(part.text for part in item.content if isinstance(part, OutputText)))
            case FunctionCall(call_id=call_id, name=name, arguments=arguments):
                told.call({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})
            case CustomToolCall(call_id=call_id, name=name, input=given):
                told.call({"id": call_id, "type": "custom", "custom": {"name": name, "input": given}})
            case McpCall(id=call_id, name=name, arguments=arguments, output=result):
                told.call({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})
                told.result({"role": "tool", "tool_call_id": call_id, "content": result or ""})
            case _:
                pass
    return told.messages


class _Told:
    def __init__(self) -> None:
        self.messages: list[Json] = []
        self._thought = ""

    def think(self, text: str) -> None:
        self._thought = text

    def say(self, text: str) -> None:
        self._assistant()["content"] = text

    def call(self, call: Json) -> None:
        """Beside what was said or called just before."""
        last = self.messages[-1] if self.messages and not self._thought else None
        spoken = last if last is not None and last["role"] == "assistant" else self._assistant()
        spoken.setdefault("tool_calls", []).append(call)

    def result(self, message: Json) -> None:
        self.messages.append(message)

    def _assistant(self) -> dict[str, Any]:
        message: Json = {"role": "assistant", "content": None}
        if self._thought:
            message["reasoning_content"] = self._thought
            self._thought = ""
        self.messages.append(message)
        return message
