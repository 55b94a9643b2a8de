"""Chat messages → items, in their order, and where each came from. An assistant's message may become several.

Ids of calls that are used again in a later turn, as some clients do, are told apart here.
"""

from collections.abc import Iterator, Sequence
from typing import assert_never

from msgspec import Struct

from antiphon.core.dialects.param_names import Place
from antiphon.errors import InvalidValue, MissingParameter, UnsupportedParameter
from antiphon.protocol.types.chat.request import (
    ChatMessageIn,
    ChatPart,
    FilePart,
    ImagePart,
    PastCustomCall,
    PastFunctionCall,
    TextPart,
)
from antiphon.protocol.types.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputAudio,
    InputFile,
    InputImage,
    InputItem,
    InputText,
    Message,
    MessagePart,
    OutputText,
    Reasoning,
    ReasoningText,
    RefusalPart,
    ToolOutputPart,
)

Found = tuple[InputItem, Place]
_MISPLACED = "tool_calls", "function_call", "refusal", "reasoning", "reasoning_content", "audio"


class Items(Struct, frozen=True):
    items: list[InputItem]
    places: list[Place]
    ignored: list[str]


def chat_items(messages: Sequence[ChatMessageIn], field: str = "messages") -> Items:
    """`field`: of the request that has them."""
    walk = _Walk()
    found = [pair for index, message in enumerate(messages) for pair in walk.take(message, f"{field}[{index}]")]
    return Items([item for item, _ in found], [place for _, place in found], [*walk.ignored])


class _Walk:
    def __init__(self) -> None:
        self.ignored: dict[str, None] = {}
        self._calls: dict[str, str] = {}  # the id a client uses → the id of the call that it means now
        self._custom: set[str] = set()
        self._times: dict[str, int] = {}  # how often an id was used
        self._function = ""  # the id of the last call by `function_call`

    def take(self, message: ChatMessageIn, at: str) -> Iterator[Found]:
        self._note_unused(message)
        match message.role:
            case "assistant":
                yield from self._assistant(message, at)
            case "tool":
                yield self._tool(message, at)
            case "function":
                yield self._returned(message, at)
            case "system" | "developer" | "user":
                parts = _inputs(_content(message, at))
                yield Message(role=message.role, content=parts), _place(message, at)
            case _:
                assert_never(message.role)

    def _note_unused(self, message: ChatMessageIn) -> None:
        if message.name is not None and message.role != "function":
            self.ignored["messages.name"] = None
        if message.role != "assistant":
            for name in _MISPLACED:
                if getattr(message, name):
                    self.ignored[f"messages.{name}"] = None

    def _assistant(self, message: ChatMessageIn, at: str) -> Iterator[Found]:
        if message.audio is not None:
            raise UnsupportedParameter("This server keeps no audio: send what was said as text.", param=f"{at}.audio")
        calls, thought = message.tool_calls or [], message.reasoning or message.reasoning_content
        if thought:
            yield Reasoning(content=[ReasoningText(text=thought)]), Place(f"{at}.reasoning")
        if message.content is not None or message.refusal:
            yield Message(role="assistant", content=_said(message, at)), _place(message, at)
        elif not (calls or thought or message.function_call):
            raise MissingParameter(f"Missing required parameter: '{at}.content'.", param=f"{at}.content")
        for number, call in enumerate(calls):
            yield self._called(call), Place(f"{at}.tool_calls[{number}]")
        if (function := message.function_call) is not None:
            self._function = self._fresh("function_call")
            called = FunctionCall(call_id=self._function, name=function.name, arguments=function.arguments)
            yield called, Place(f"{at}.function_call")

    def _called(self, call: PastFunctionCall | PastCustomCall) -> FunctionCall | CustomToolCall:
        call_id = self._calls[call.id] = self._fresh(call.id)
        if isinstance(call, PastFunctionCall):
            return FunctionCall(call_id=call_id, name=call.function.name, arguments=call.function.arguments)
        self._custom.add(call_id)
        return CustomToolCall(call_id=call_id, name=call.custom.name, input=call.custom.input)

    def _fresh(self, call_id: str) -> str:
        fresh = stem = call_id or "call"
        while fresh in self._times:
            self._times[stem] += 1
            fresh = f"{stem}_{self._times[stem]}"
        self._times[fresh] = 1
        return fresh

    def _tool(self, message: ChatMessageIn, at: str) -> Found:
        if message.tool_call_id is None:
            raise MissingParameter(f"Missing required parameter: '{at}.tool_call_id'.", param=f"{at}.tool_call_id")
        call_id = self._calls.get(message.tool_call_id, message.tool_call_id)
        output, place = _output(message, at), _place(message, at)
        if call_id in self._custom:
            return CustomToolCallOutput(call_id=call_id, output=output), place
        return FunctionCallOutput(call_id=call_id, output=output), place

    def _returned(self, message: ChatMessageIn, at: str) -> Found:
        """Of the time when a message had at most one call, which had no id."""
        if message.name is None:
            raise MissingParameter(f"Missing required parameter: '{at}.name'.", param=f"{at}.name")
        if not self._function:
            raise InvalidValue("There is no function_call before this message.", param=at)
        call_id, self._function = self._function, ""
        return FunctionCallOutput(call_id=call_id, output=_output(message, at)), _place(message, at)


def _content(message: ChatMessageIn, at: str) -> str | list[ChatPart]:
    if message.content is None:
        raise MissingParameter(f"Missing required parameter: '{at}.content'.", param=f"{at}.content")
    return message.content


def _place(message: ChatMessageIn, at: str) -> Place:
    if not isinstance(message.content, list):
        return Place(at, (f"{at}.content",))
    return Place(at, [f"{at}.content[{n}]{_held(part)}" for n, part in enumerate(message.content)])


def _held(part: ChatPart) -> str:
    return ".image_url" if isinstance(part, ImagePart) else ".file" if isinstance(part, FilePart) else ""


def _inputs(content: str | list[ChatPart]) -> list[MessagePart]:
    return [InputText(text=content)] if isinstance(content, str) else [_input(part) for part in content]


def _input(part: ChatPart) -> InputText | InputImage | InputFile | InputAudio | RefusalPart:
    match part:
        case TextPart():
            return InputText(text=part.text)
        case ImagePart():
            return InputImage(image_url=part.image_url.url, detail=part.image_url.detail)
        case FilePart():
            held = part.file
            return InputFile(file_data=held.file_data, file_id=held.file_id, filename=held.filename)
        case InputAudio() | RefusalPart():
            return part
        case _:
            assert_never(part)


def _said(message: ChatMessageIn, at: str) -> list[MessagePart]:
    content = message.content
    said: list[MessagePart] = []
    if isinstance(content, str):
        said.append(OutputText(text=content))
    for number, part in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(part, TextPart | RefusalPart):
            raise _unfit("an assistant's message has text and refusals only", f"{at}.content[{number}]")
        said.append(OutputText(text=part.text) if isinstance(part, TextPart) else part)
    if message.refusal:
        said.append(RefusalPart(refusal=message.refusal))
    return said


def _output(message: ChatMessageIn, at: str) -> str | list[ToolOutputPart]:
    content = _content(message, at) if message.role == "tool" else message.content or ""
    if isinstance(content, str):
        return content
    parts: list[ToolOutputPart] = []
    for number, part in enumerate(content):
        shown = _input(part)
        if isinstance(shown, InputAudio | RefusalPart):
            raise _unfit("a tool's output has text, images and files only", f"{at}.content[{number}]")
        parts.append(shown)
    return parts


def _unfit(reason: str, param: str) -> InvalidValue:
    return InvalidValue(f"Invalid value for '{param}': {reason}.", param=param)
