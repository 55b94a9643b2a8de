"""Chat messages → items in the same order, and the position from which each came.

An assistant message may become several items. Call ids that some clients reuse in a later turn are made unique here.
"""

from collections.abc import Sequence
from typing import assert_never

from antiphon.core.dialects.translation import SourcePosition, TranslatedItems
from antiphon.errors import InvalidValue, UnsupportedParameter, invalid_value, missing_parameter
from antiphon.protocol.types import items as it
from antiphon.protocol.types import parts as pt
from antiphon.protocol.types.chat import request as wire

_ASSISTANT_FIELDS = "tool_calls", "function_call", "refusal", "reasoning", "reasoning_content", "audio"


def to_items(messages: Sequence[wire.ChatMessageIn], field: str = "messages") -> "ChatItems":
    """Convert messages; `field` is the request field that contains them."""
    items = ChatItems()
    for index, message in enumerate(messages):
        items.add_message(message, f"{field}[{index}]")
    return items


class ChatItems(TranslatedItems):
    """Converts messages one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[str, str] = {}  # the client's call id → the unique id of the call it currently means
        self._custom_calls: set[str] = set()
        self._id_uses: dict[str, int] = {}  # number of uses of each id
        self._function_call_id = ""  # id of the last call by `function_call`

    def add_message(self, message: wire.ChatMessageIn, path: str) -> None:
        self._record_ignored(message)
        match message.role:
            case "assistant":
                self._add_assistant(message, path)
            case "tool":
                self._add_tool_output(message, path)
            case "function":
                self._add_function_output(message, path)
            case "system" | "developer" | "user":
                content = _require_content(message, path)
                parts = [pt.InputText(text=content)] if isinstance(content, str) else map(_to_input_part, content)
                self.add(it.Message(role=message.role, content=[*parts]), _position(message, path))
            case _:
                assert_never(message.role)

    def _record_ignored(self, message: wire.ChatMessageIn) -> None:
        ignored = ["name"] if message.name is not None and message.role != "function" else []
        if message.role != "assistant":
            ignored += [name for name in _ASSISTANT_FIELDS if getattr(message, name)]
        self.ignored += [f"messages.{name}" for name in ignored if f"messages.{name}" not in self.ignored]

    def _add_assistant(self, message: wire.ChatMessageIn, path: str) -> None:
        if message.audio is not None:
            raise UnsupportedParameter("Audio is not stored: send a transcript as text.", param=f"{path}.audio")
        calls, reasoning = message.tool_calls or [], message.reasoning or message.reasoning_content
        if reasoning:
            self.add(it.Reasoning(content=[pt.ReasoningText(text=reasoning)]), SourcePosition(f"{path}.reasoning"))
        if message.content is not None or message.refusal:
            self.add(it.Message(role="assistant", content=_to_output_parts(message, path)), _position(message, path))
        elif not (calls or reasoning or message.function_call):
            raise missing_parameter(f"{path}.content")
        for number, call in enumerate(calls):
            self.add(self._convert_call(call), SourcePosition(f"{path}.tool_calls[{number}]"))
        if (function := message.function_call) is not None:
            self._function_call_id = self._unique_id("function_call")
            call_item = it.FunctionCall(
                call_id=self._function_call_id, name=function.name, arguments=function.arguments
            )
            self.add(call_item, SourcePosition(f"{path}.function_call"))

    def _convert_call(self, call: wire.PastFunctionCall | wire.PastCustomCall) -> it.FunctionCall | it.CustomToolCall:
        call_id = self._calls[call.id] = self._unique_id(call.id)
        if isinstance(call, wire.PastFunctionCall):
            return it.FunctionCall(call_id=call_id, name=call.function.name, arguments=call.function.arguments)
        self._custom_calls.add(call_id)
        return it.CustomToolCall(call_id=call_id, name=call.custom.name, input=call.custom.input)

    def _unique_id(self, call_id: str) -> str:
        unique = stem = call_id or "call"
        while unique in self._id_uses:
            self._id_uses[stem] += 1
            unique = f"{stem}_{self._id_uses[stem]}"
        self._id_uses[unique] = 1
        return unique

    def _add_tool_output(self, message: wire.ChatMessageIn, path: str) -> None:
        if message.tool_call_id is None:
            raise missing_parameter(f"{path}.tool_call_id")
        call_id = self._calls.get(message.tool_call_id, message.tool_call_id)
        output_type = it.CustomToolCallOutput if call_id in self._custom_calls else it.FunctionCallOutput
        self.add(output_type(call_id=call_id, output=_to_tool_output(message, path)), _position(message, path))

    def _add_function_output(self, message: wire.ChatMessageIn, path: str) -> None:
        """Convert a message of the legacy role `function`: a message had at most one call, and it had no id."""
        if message.name is None:
            raise missing_parameter(f"{path}.name")
        if not self._function_call_id:
            raise InvalidValue("There is no function_call before this message.", param=path)
        call_id, self._function_call_id = self._function_call_id, ""
        self.add(
            it.FunctionCallOutput(call_id=call_id, output=_to_tool_output(message, path)), _position(message, path)
        )


def _require_content(message: wire.ChatMessageIn, path: str) -> str | list[wire.ChatPart]:
    if message.content is None:
        raise missing_parameter(f"{path}.content")
    return message.content


def _position(message: wire.ChatMessageIn, path: str) -> SourcePosition:
    if not isinstance(message.content, list):
        return SourcePosition(path, (f"{path}.content",))
    return SourcePosition(path, [f"{path}.content[{n}]{_part_suffix(part)}" for n, part in enumerate(message.content)])


def _part_suffix(part: wire.ChatPart) -> str:
    return ".image_url" if isinstance(part, wire.ImagePart) else ".file" if isinstance(part, wire.FilePart) else ""


def _to_input_part(part: wire.ChatPart) -> pt.InputText | pt.InputImage | pt.InputFile | pt.InputAudio | pt.RefusalPart:
    match part:
        case wire.TextPart():
            return pt.InputText(text=part.text)
        case wire.ImagePart():
            return pt.InputImage(image_url=part.image_url.url, detail=part.image_url.detail)
        case wire.FilePart():
            file = part.file
            return pt.InputFile(file_data=file.file_data, file_id=file.file_id, filename=file.filename)
        case pt.InputAudio() | pt.RefusalPart():
            return part
        case _:
            assert_never(part)


def _to_output_parts(message: wire.ChatMessageIn, path: str) -> list[pt.MessagePart]:
    content = message.content
    parts: list[pt.MessagePart] = []
    if isinstance(content, str):
        parts.append(pt.OutputText(text=content))
    for number, part in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(part, wire.TextPart | pt.RefusalPart):
            raise invalid_value(f"{path}.content[{number}]", "an assistant message may only contain text and refusals")
        parts.append(pt.OutputText(text=part.text) if isinstance(part, wire.TextPart) else part)
    if message.refusal:
        parts.append(pt.RefusalPart(refusal=message.refusal))
    return parts


def _to_tool_output(message: wire.ChatMessageIn, path: str) -> str | list[pt.ToolOutputPart]:
    content = _require_content(message, path) if message.role == "tool" else message.content or ""
    if isinstance(content, str):
        return content
    parts: list[pt.ToolOutputPart] = []
    for number, part in enumerate(content):
        converted = _to_input_part(part)
        if isinstance(converted, pt.InputAudio | pt.RefusalPart):
            raise invalid_value(f"{path}.content[{number}]", "a tool output may only contain text, images and files")
        parts.append(converted)
    return parts
