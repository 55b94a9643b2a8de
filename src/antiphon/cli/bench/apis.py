"""The APIs that servers are measured over: path, request body, and the reader of an answer's events.

Each API has a reader class, with one instance per answer; events are decoded only as far as needed: when content
arrived, the number of tokens, and whether the answer ended normally.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from msgspec import Struct
from msgspec.json import Decoder

from antiphon.engines.http.readers.wire import COMPLETION, WireCompletion


class AnswerReader(ABC):
    """Reads the events of one answer."""

    def __init__(self) -> None:
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.ended = False  # the server reported the end of the answer
        self.fault: str | None = None  # error message of the server

    @abstractmethod
    def feed(self, events: Iterable[Any]) -> int:
        """Return the number of events with content."""


class ResponseUsageFields(Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None


class ResponseFields(Struct, gc=False):
    usage: ResponseUsageFields | None = None
    error: Any = None


class ResponseEventFields(Struct, gc=False):
    type: str = ""
    response: ResponseFields | None = None
    error: Any = None
    message: str | None = None


RESPONSE_EVENT = Decoder(ResponseEventFields)


class ResponsesAnswerReader(AnswerReader):
    def feed(self, events: Iterable[ResponseEventFields]) -> int:
        count = 0
        for event in events:
            if event.type.endswith(".delta"):
                count += 1
            elif event.type in ("response.completed", "response.incomplete"):
                self._end(event.response or ResponseFields())
            elif event.type in ("response.failed", "response.cancelled", "error"):
                error = event.response.error if event.response else event.error or event.message
                self.fault = self.fault or extract_message(error) or event.type
        return count

    def _end(self, response: ResponseFields) -> None:
        self.ended = True
        if response.usage is not None:
            self.input_tokens = response.usage.input_tokens
            self.output_tokens = response.usage.output_tokens


class ChatAnswerReader(AnswerReader):
    def feed(self, events: Iterable[WireCompletion]) -> int:
        count = 0
        for event in events:
            for choice in event.choices or ():
                delta = choice.delta
                if delta is not None and (
                    delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls or delta.refusal
                ):
                    count += 1
                if choice.finish_reason:
                    self.ended = True
            if event.usage is not None:
                self.input_tokens = event.usage.prompt_tokens
                self.output_tokens = event.usage.completion_tokens
            if event.error is not None:
                self.fault = extract_message(event.error) or "it failed without an error message"
        return count


class BenchApi(Struct, frozen=True):
    """Path, request body and reader of an API."""

    name: str
    path: str
    decoder: Decoder[Any]
    reader: type[AnswerReader]

    def make_body(self, model: str, prompt: str, max_tokens: int) -> dict[str, Any]:
        common = {"model": model, "stream": True}
        if self.name == "responses":
            return {**common, "input": prompt, "max_output_tokens": max_tokens, "store": False}
        messages = [{"role": "user", "content": prompt}]
        return {**common, "messages": messages, "max_tokens": max_tokens, "stream_options": {"include_usage": True}}


RESPONSES = BenchApi("responses", "/responses", RESPONSE_EVENT, ResponsesAnswerReader)
CHAT = BenchApi("chat", "/chat/completions", COMPLETION, ChatAnswerReader)
APIS = {api.name: api for api in (RESPONSES, CHAT)}


def extract_message(error: Any) -> str:
    """Extract the message of {"error": {"message": …}}, {"message": …}, {"detail": …} or a text."""
    for _ in range(3):
        if isinstance(error, dict):
            error = next((error[name] for name in ("error", "message", "detail") if error.get(name)), "")
    return error.strip() if isinstance(error, str) else ""
