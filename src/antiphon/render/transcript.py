"""Builds chat messages with a valid structure.

The calls of a turn and the text before them form one assistant message, directly followed by one output for each call.
For a model without tools, calls and outputs are rendered as text.
"""

from msgspec import Struct

from antiphon.core.prompt import Json
from antiphon.render.tools.past_calls import RenderedCall

Content = str | list[Json]


class Transcript:
    """Chat messages under construction."""

    def __init__(self, supports_tools: bool) -> None:
        self._supports_tools = supports_tools
        self._messages: list[Json] = []
        self._turn: _AssistantTurn | None = None

    def add_message(self, role: str, content: Content) -> None:
        self._end_turn()
        self._messages.append({"role": role, "content": content})

    def add_assistant(self, content: Content, reasoning: str, phase: str = "") -> None:
        """Open an assistant message; calls may follow."""
        self._end_turn()
        self._turn = _AssistantTurn(content, reasoning, phase)

    def add_call(self, call: RenderedCall, output: Content, reasoning: str) -> None:
        if self._turn is None or reasoning:
            self._end_turn()
            self._turn = _AssistantTurn(None, reasoning, "")
        self._turn.calls.append((call, output))

    def end_calls(self) -> None:
        """Close the calls of the current turn because outputs follow: a later call belongs to another turn."""
        if self._turn is not None and self._turn.calls:
            self._end_turn()

    def finish(self) -> list[Json]:
        self._end_turn()
        return self._messages

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._messages += self._turn.to_chat() if self._supports_tools else self._turn.to_text()
            self._turn = None


class _AssistantTurn(Struct):
    content: Content | None
    reasoning: str
    phase: str  # of the content, for models that support phases
    calls: list[tuple[RenderedCall, Content]] = []

    def to_chat(self) -> list[Json]:
        message = self._build_message(self.content)
        if not self.calls:
            return [message]
        message["tool_calls"] = [_chat_call(call) for call, _ in self.calls]
        return [message, *[_chat_output(call, output) for call, output in self.calls]]

    def to_text(self) -> list[Json]:
        if not self.calls:
            return [self._build_message(self.content)]
        lines = [f"[called {call.name} with {call.arguments}]" for call, _ in self.calls]
        parts: list[Json] = []
        for call, output in self.calls:
            parts += [
                _text_part(f"[{call.name} returned]"),
                *([_text_part(output)] if isinstance(output, str) else output),
            ]
        return [
            self._build_message(_join_text([*_to_parts(self.content), *map(_text_part, lines)])),
            _user_message(_join_text(parts)),
        ]

    def _build_message(self, content: Content | None) -> Json:
        message: Json = {"role": "assistant", "content": content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.phase:
            message["phase"] = self.phase
        return message


def _chat_call(call: RenderedCall) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _chat_output(call: RenderedCall, output: Content) -> Json:
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": output}


def _user_message(content: Content) -> Json:
    return {"role": "user", "content": content}


def _text_part(text: str) -> Json:
    return {"type": "text", "text": text}


def _to_parts(content: Content | None) -> list[Json]:
    return [_text_part(content)] if isinstance(content, str) else content or []


def _join_text(parts: list[Json]) -> Content:
    """Join the parts into one string if all of them are text."""
    return "\n".join([part["text"] for part in parts]) if all(part["type"] == "text" for part in parts) else parts
