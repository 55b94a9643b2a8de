"""A server under measurement: discovery of its models and APIs, requests, and the timing of answers.

Events are decoded only as far as needed: whether they have content, the number of tokens, and whether the answer ended
normally. Events that are read together have the same time.
"""

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.json import Decoder

from antiphon.cli.bench.figures import Answer
from antiphon.cli.bench.plan import BenchPlan
from antiphon.cli.client import EVENT, ServerClient, StreamedEvent
from antiphon.engines.client import EngineHttpError
from antiphon.engines.connection import ResponseInterrupted
from antiphon.engines.http.error_mapping import extract_message
from antiphon.engines.http.readers.wire import COMPLETION, WireCompletion
from antiphon.errors import AntiphonError, EngineFailed, RequestFailed, ServerUnreachable, Unavailable

STREAM_END_SECONDS = 1.0  # seconds from the end of an answer to the end of its stream
PROBE_TOKENS = 16  # the minimum of OpenAI's API
ABSENT_STATUSES = frozenset({404, 405, 501})


def read_response_event(answer: Answer, event: StreamedEvent) -> int:
    if event.type.endswith(".delta"):
        return 1
    if event.type in ("response.completed", "response.incomplete"):
        answer.is_complete = True
        if event.response is not None and event.response.usage is not None:
            answer.input_tokens = event.response.usage.input_tokens
            answer.output_tokens = event.response.usage.output_tokens
    elif event.type in ("response.failed", "response.cancelled", "error"):
        answer.fault = answer.fault or event.error_message or event.type
    return 0


def read_chat_event(answer: Answer, event: WireCompletion) -> int:
    choices = event.choices or ()
    deltas = [choice.delta for choice in choices if choice.delta is not None]
    answer.is_complete = answer.is_complete or any(choice.finish_reason for choice in choices)
    if event.usage is not None:
        answer.input_tokens, answer.output_tokens = event.usage.prompt_tokens, event.usage.completion_tokens
    if event.error is not None:
        answer.fault = extract_message(event.error) or "it failed without an error message"
    return sum(
        bool(delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls or delta.refusal)
        for delta in deltas
    )


class BenchApi(Struct, frozen=True):
    """An API that servers are measured over. `read` reads an event and returns the number of its parts with content."""

    name: str
    path: str
    decoder: Decoder[Any]
    read: Callable[[Answer, Any], int]

    def make_body(self, model: str, prompt: str, max_tokens: int) -> dict[str, Any]:
        common = {"model": model, "stream": True}
        if self.name == "responses":
            return {**common, "input": prompt, "max_output_tokens": max_tokens, "store": False}
        messages = [{"role": "user", "content": prompt}]
        return {**common, "messages": messages, "max_tokens": max_tokens, "stream_options": {"include_usage": True}}


RESPONSES = BenchApi("responses", "/responses", EVENT, read_response_event)
CHAT = BenchApi("chat", "/chat/completions", COMPLETION, read_chat_event)
APIS = {api.name: api for api in (RESPONSES, CHAT)}


class ApiRefused(RequestFailed):
    """A server does not answer over an API. `is_absent`: it does not seem to have this API."""

    def __init__(self, message: str, is_absent: bool = False) -> None:
        super().__init__(message)
        self.is_absent = is_absent


class BenchTarget(ServerClient):
    """One server of the benchmark. `numbers` makes the prompts of all requests distinct."""

    key_flag = "--key"

    def __init__(self, url: str, key: str | None, plan: BenchPlan, numbers: Iterator[int]) -> None:
        super().__init__(url, key, plan.timeout, plan.max_concurrency)
        self.api = RESPONSES
        self.model = plan.model or ""
        self.events = 0  # content events received so far
        self._plan = plan
        self._numbers = numbers

    async def choose_model(self) -> None:
        """Choose the first model of the server, unless one is configured. Raises RequestFailed."""
        if self.model:
            return
        try:
            models = await self.list_models()
        except EngineHttpError as error:
            self.check_key_error(error)
            raise RequestFailed(
                f"{self.url} does not list its models (HTTP {error.status_code}): set one with --model."
            )
        except Unavailable as error:
            raise ServerUnreachable(self.describe_error(error))
        except EngineFailed as error:
            raise RequestFailed(f"{self.describe_error(error)} Is it an OpenAI-compatible server?")
        if not models:
            raise RequestFailed(f"{self.url} has no model.")
        self.model = models[0]

    async def probe_api(self, api: BenchApi) -> None:
        """Select an API and send a probe.

        Raises ApiRefused if the server does not support the API, RequestFailed if another one could not work either.
        """
        self.api = api
        try:
            await self.request_answer(0.0, PROBE_TOKENS)
        except EngineHttpError as error:
            self.check_key_error(error)
            raise ApiRefused(self.describe_error(error), error.status_code in ABSENT_STATUSES)
        except Unavailable as error:
            raise ServerUnreachable(self.describe_error(error))
        except EngineFailed as error:
            raise ApiRefused(self.describe_error(error))

    async def request_answer(self, due: float, max_tokens: int) -> Answer:
        """Send one request and read the answer to its end. Raises AntiphonError if it fails."""
        api = self.api
        fields = api.make_body(self.model, self._plan.make_prompt(next(self._numbers)), max_tokens)
        body = msgspec.json.encode(self._plan.add_extra_fields(fields))
        stream = await self.http.post_stream(api.path, body, api.decoder)
        answer = Answer(due)
        try:
            async for events in stream:
                self.events += answer.add([api.read(answer, event) for event in events], perf_counter())
                if answer.is_complete:
                    stream.shorten_timeout(STREAM_END_SECONDS)
        except ResponseInterrupted:
            if not answer.is_complete:
                raise
        finally:
            stream.close()
        self._check_answer(answer)
        return answer

    def classify_error(self, error: AntiphonError) -> str:
        """Return the kind of failure by which failures are counted."""
        if isinstance(error, EngineHttpError):
            return f"HTTP {error.status_code}"
        return self.describe_error(error).removeprefix(self.url).strip(" .")

    def _check_answer(self, answer: Answer) -> None:
        if answer.fault is not None:
            raise EngineFailed(f"{self.url} reported an error in the stream: {answer.fault}")
        if not answer.is_complete:
            raise EngineFailed(f"{self.url} ended the stream before the end of the answer.")
        if not answer.content_events:
            raise EngineFailed(f"{self.url} returned no tokens.")
