"""Chat messages in the making. It keeps their grammar: the calls of a turn, and the text before them, are one
assistant message, directly followed by one output for each call.

For a model without tools calls and outputs are told in words.
"""

from msgspec import Struct

from antiphon.core.prompt import Json
from antiphon.render.tools.past_calls import Called

Content = str | list[Json]


class Transcript:
    def __init__(self, knows_tools: bool) -> None:
        self._knows_tools = knows_tools
        self._messages: list[Json] = []
        self._turn: _Turn | None = None

    def say(self, role: str, content: Content) -> None:
        self._end_turn()
        self._messages.append({"role": role, "content": content})

    def answer(self, content: Content, thought: str, phase: str = "") -> None:
        """What an assistant said; calls may follow."""
        self._end_turn()
        self._turn = _Turn(content, thought, phase)

    def call(self, called: Called, output: Content, thought: str) -> None:
        if self._turn is None or thought:
            self._end_turn()
            self._turn = _Turn(None, thought, "")
        self._turn.calls.append((called, output))

    def end_calls(self) -> None:
        """Outputs have come: a call after them is another turn's."""
        if self._turn is not None and self._turn.calls:
            self._end_turn()

    def finish(self) -> list[Json]:
        self._end_turn()
        return self._messages

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._messages += self._turn.as_chat() if self._knows_tools else self._turn.in_words()
            self._turn = None


class _Turn(Struct):
    content: Content | None
    thought: str
    phase: str  # of the content, for models that know of phases
    calls: list[tuple[Called, Content]] = []

    def as_chat(self) -> list[Json]:
        said = self._said(self.content)
        if not self.calls:
            return [said]
        said["tool_calls"] = [_chat_call(called) for called, _ in self.calls]
        return [said, *[_chat_output(called, output) for called, output in self.calls]]

    def in_words(self) -> list[Json]:
        if not self.calls:
            return [self._said(self.content)]
        words = [f"[called {called.name} with {called.arguments}]" for called, _ in self.calls]
        told: list[Json] = []
        for called, output in self.calls:
            told += [_text(f"[{called.name} returned]"), *([_text(output)] if isinstance(output, str) else output)]
        return [self._said(_joined([*_listed(self.content), *map(_text, words)])), _user(_joined(told))]

    def _said(self, content: Content | None) -> Json:
        said: Json = {"role": "assistant", "content": content}
        if self.thought:
            said["reasoning_content"] = self.thought
        if self.phase:
            said["phase"] = self.phase
        return said


def _chat_call(called: Called) -> Json:
    return {"id": called.id, "type": "function", "function": {"name": called.name, "arguments": called.arguments}}


def _chat_output(called: Called, output: Content) -> Json:
    return {"role": "tool", "tool_call_id": called.id, "name": called.name, "content": output}


def _user(content: Content) -> Json:
    return {"role": "user", "content": content}


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _listed(content: Content | None) -> list[Json]:
    return [_text(content)] if isinstance(content, str) else content or []


def _joined(parts: list[Json]) -> Content:
    """Text where it is nothing else."""
    return "\n".join([part["text"] for part in parts]) if all(part["type"] == "text" for part in parts) else parts
