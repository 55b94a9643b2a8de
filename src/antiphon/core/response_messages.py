"""Output items → chat messages: what a model said, in the shape in which it may be sent as earlier messages."""

from collections.abc import Sequence
from typing import Any

from antiphon.protocol.items import CustomToolCall, FunctionCall, McpCall, Message, OutputItem, Reasoning
from antiphon.protocol.parts import OutputText
from antiphon.protocol.tools import Json


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
