"""The APIs that servers are measured over: path, request body, and how the events of an answer are read.

Events are decoded only as far as needed: whether they have content, the number of tokens, and whether the answer ended
normally.
"""

from typing import Any

from msgspec import Struct
from msgspec.json import Decoder

from antiphon.cli.bench.figures import Answer
from antiphon.engines.http.readers.wire import COMPLETION, WireCompletion


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


class ResponsesAnswer(Answer):
    def read(self, event: ResponseEventFields) -> int:
        if event.type.endswith(".delta"):
            return 1
        if event.type in ("response.completed", "response.incomplete"):
            self.is_complete = True
            if event.response is not None and event.response.usage is not None:
                self.input_tokens = event.response.usage.input_tokens
                self.output_tokens = event.response.usage.output_tokens
        elif event.type in ("response.failed", "response.cancelled", "error"):
            error = event.response.error if event.response else event.error or event.message
            self.fault = self.fault or extract_message(error) or event.type
        return 0


class ChatAnswer(Answer):
    def read(self, event: WireCompletion) -> int:
        count = 0
        for choice in event.choices or ():
            delta = choice.delta
            if delta is not None and (
                delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls or delta.refusal
            ):
                count += 1
            if choice.finish_reason:
                self.is_complete = True
        if event.usage is not None:
            self.input_tokens, self.output_tokens = event.usage.prompt_tokens, event.usage.completion_tokens
        if event.error is not None:
            self.fault = extract_message(event.error) or "it failed without an error message"
        return count


class BenchApi(Struct, frozen=True):
    name: str
    path: str
    decoder: Decoder[Any]
    answer: type[Answer]

    def make_body(self, model: str, prompt: str, max_tokens: int) -> dict[str, Any]:
        common = {"model": model, "stream": True}
        if self.name == "responses":
            return {**common, "input": prompt, "max_output_tokens": max_tokens, "store": False}
        messages = [{"role": "user", "content": prompt}]
        return {**common, "messages": messages, "max_tokens": max_tokens, "stream_options": {"include_usage": True}}


RESPONSES = BenchApi("responses", "/responses", Decoder(ResponseEventFields), ResponsesAnswer)
CHAT = BenchApi("chat", "/chat/completions", COMPLETION, ChatAnswer)
APIS = {api.name: api for api in (RESPONSES, CHAT)}


def extract_message(error: Any) -> str:
    """Extract the message of {"error": {"message": …}}, {"message": …}, {"detail": …} or a text."""
    for _ in range(3):
        if isinstance(error, dict):
            error = next((error[name] for name in ("error", "message", "detail") if error.get(name)), "")
    return error.strip() if isinstance(error, str) else ""
