"""What a bench hears of an answer: when something of it came, how many tokens it had, and whether it ended well.

One reader for each API, one of its objects for each answer. Events are decoded as far as they matter.
"""

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from msgspec import Struct
from msgspec.json import Decoder

from antiphon.engines.http.readers.wire import COMPLETION, Completion

T = TypeVar("T", contravariant=True)


class Reader(Protocol[T]):
    input_tokens: int | None
    output_tokens: int | None
    ended: bool  # the server said that this was all
    fault: str | None  # what it said went wrong

    def feed(self, events: Iterable[T]) -> int:
        """How many of them have something of the answer in them."""


class ResponseUsage(Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None


class ToldResponse(Struct, gc=False):
    usage: ResponseUsage | None = None
    error: Any = None


class ResponseEvent(Struct, gc=False):
    type: str = ""
    response: ToldResponse | None = None
    error: Any = None
    message: str | None = None


RESPONSE_EVENT = Decoder(ResponseEvent)


class ResponsesReader:
    def __init__(self) -> None:
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.ended = False
        self.fault: str | None = None

    def feed(self, events: Iterable[ResponseEvent]) -> int:
        heard = 0
        for event in events:
            if event.type.endswith(".delta"):
                heard += 1
            elif event.type in ("response.completed", "response.incomplete"):
                self._end(event.response or ToldResponse())
            elif event.type in ("response.failed", "response.cancelled", "error"):
                told = event.response.error if event.response else event.error or event.message
                self.fault = self.fault or words(told) or event.type
        return heard

    def _end(self, response: ToldResponse) -> None:
        self.ended = True
        if response.usage is not None:
            self.input_tokens = response.usage.input_tokens
            self.output_tokens = response.usage.output_tokens


class ChatReader:
    def __init__(self) -> None:
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.ended = False
        self.fault: str | None = None

    def feed(self, events: Iterable[Completion]) -> int:
        heard = 0
        for event in events:
            for choice in event.choices or ():
                delta = choice.delta
                if delta is not None and (
                    delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls or delta.refusal
                ):
                    heard += 1
                if choice.finish_reason:
                    self.ended = True
            if event.usage is not None:
                self.input_tokens = event.usage.prompt_tokens
                self.output_tokens = event.usage.completion_tokens
            if event.error is not None:
                self.fault = words(event.error) or "it failed without a word"
        return heard


class Api(Struct, frozen=True):
    """Where its answers are asked for, and how they are read."""

    name: str
    path: str
    decoder: Decoder[Any]
    reader: type[ResponsesReader] | type[ChatReader]

    def body(self, model: str, prompt: str, most: int) -> dict[str, Any]:
        asked = {"model": model, "stream": True}
        if self.name == "responses":
            return {**asked, "input": prompt, "max_output_tokens": most, "store": False}
        messages = [{"role": "user", "content": prompt}]
        return {**asked, "messages": messages, "max_tokens": most, "stream_options": {"include_usage": True}}


RESPONSES = Api("responses", "/responses", RESPONSE_EVENT, ResponsesReader)
CHAT = Api("chat", "/chat/completions", COMPLETION, ChatReader)
APIS = {api.name: api for api in (RESPONSES, CHAT)}


def words(error: Any) -> str:
    """{"error": {"message": …}}, {"message": …}, {"detail": …} or a text."""
    for _ in range(3):
        if isinstance(error, dict):
            error = next((error[name] for name in ("error", "message", "detail") if error.get(name)), "")
    return error.strip() if isinstance(error, str) else ""
