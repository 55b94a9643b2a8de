"""Records the model calls and tool calls of a run with their timing, for tracing. Untraced runs have no tracer.

Attributes of spans follow the OpenTelemetry semantic conventions for generative AI (`gen_ai.*`).

tracer = call.new_tracer(response_id)                 ModelCall.new_tracer
trace = tracer.start_call(engine, generation)         the current span until its end, propagated to the engine
feed = trace.wrap_feed(feed)                          retains the chunks, if requested
trace.end(finish, counts, error)
with tracer.start_tool(kind, call) as trace: …
tracer.end(status, model, counts, error)
"""

from collections.abc import Callable, Mapping, Sequence
from time import time
from typing import Any, Self, TypeVar

from msgspec import Struct
from msgspec.json import encode

from antiphon.core.prompt import ChatPrompt, Chunk, FinishKind, GenerationRequest, Prompt, TextPrompt, TokenCounts
from antiphon.errors import AntiphonError
from antiphon.observe.spans import ActiveSpan, AttributeValue, Kind, Tracer
from antiphon.tools.base import ModelToolCall

T = TypeVar("T")
Json = dict[str, Any]

_MAX_CHUNKS = 100_000  # retained per call; later chunks are dropped
_MAX_ATTRIBUTE_CHARS = 32 * 1024  # collectors reject attributes that are much longer


class _Trace:
    """Timing of an operation, and its span if there is a tracer: the current span from now to the end."""

    def __init__(
        self, tracer: Tracer | None, name: str, kind: Kind, attributes: Mapping[str, AttributeValue | None]
    ) -> None:
        self.started_at = time()
        self.ended_at: float | None = None
        self.error = ""  # error code
        present = {key: value for key, value in attributes.items() if value is not None}
        self._span = None if tracer is None else ActiveSpan(tracer, name, kind, present).__enter__()

    def _end(self, error: str, attributes: Mapping[str, AttributeValue]) -> None:
        self.ended_at, self.error = time(), error
        if self._span is not None:
            span = self._span.span
            span.attributes |= attributes
            if error:
                span.error = span.attributes["error.type"] = error
            self._span.__exit__(None, None, None)


class AttemptTrace(Struct):
    """A try of one engine of a pool. `ended_at` and `error` are set if it fails."""

    engine: str
    started_at: float
    ended_at: float | None = None
    error: str = ""


class CallTrace(_Trace):
    def __init__(self, engine: str, generation: GenerationRequest, retain_chunks: bool, tracer: Tracer | None) -> None:
        super().__init__(tracer, *_describe_request(engine, generation))
        self.engine = engine
        self.generation = generation
        self.ready_at: float | None = None  # when the call got its slot of the model
        self.first_at: float | None = None
        self.finish: FinishKind | None = None
        self.counts = TokenCounts()
        self.chunks: list[Chunk] = []
        self.attempts: list[AttemptTrace] = []
        self._exports_content = tracer is not None and tracer.content
        self._retain_chunks = retain_chunks or self._exports_content

    def end(self, finish: FinishKind | None, counts: TokenCounts, error: BaseException | None) -> None:
        self.finish, self.counts = finish, counts
        code = "" if error is None else getattr(error, "code", None) or type(error).__name__
        self._end(code, {} if self._span is None else self._describe_end())

    def note_attempt(self, engine: str, error: str) -> None:
        """Note that an engine is tried, or that the one that was tried last has failed."""
        if error:
            self.attempts[-1].ended_at, self.attempts[-1].error = time(), error
        else:
            self.attempts.append(AttemptTrace(engine, time()))

    def wrap_feed(self, feed: Callable[[list[Chunk]], list[T]]) -> Callable[[list[Chunk]], list[T]]:
        """Wrap `feed` so that the time of the first chunk and, if requested, the chunks are recorded."""

        def feed_and_record(chunks: list[Chunk]) -> list[T]:
            if self.first_at is None and chunks:
                self.first_at = time()
            if self._retain_chunks and len(self.chunks) < _MAX_CHUNKS:
                self.chunks += chunks
            return feed(chunks)

        return feed_and_record

    def _describe_end(self) -> dict[str, AttributeValue]:
        attributes = _usage_attributes(self.counts)
        attributes["gen_ai.response.model"] = self.generation.model
        if self.finish is not None:
            attributes["gen_ai.response.finish_reasons"] = [self.finish]
        if self.first_at is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = self.first_at - self.started_at
        if self._exports_content:
            attributes["gen_ai.input.messages"] = _encode_bounded(_input_messages(self.generation.prompt))
            attributes["gen_ai.output.messages"] = _encode_bounded(_output_messages(self.chunks, self.finish))
        return attributes


class ToolCallTrace(_Trace):
    """Trace of one tool call that the server runs."""

    def __init__(self, kind: str, call: ModelToolCall, tracer: Tracer | None) -> None:
        self.kind = kind
        self.call = call
        self.outcome = ""
        exports_content = tracer is not None and tracer.content
        attributes: dict[str, AttributeValue | None] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.type": "extension" if kind == "mcp" else "function",
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.call.arguments": call.arguments[:_MAX_ATTRIBUTE_CHARS] if exports_content else None,
        }
        super().__init__(tracer, f"execute_tool {call.name}", "internal", attributes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        outcome = "" if self.outcome == "completed" else self.outcome
        self._end(outcome or ("" if kind is None else kind.__name__), {})


class RunTracer(_Trace):
    """Trace of one run.

    `retain_chunks`: keep the model output. `on_end` is called with this tracer at the end.
    """

    def __init__(
        self, response_id: str, tracer: Tracer | None, retain_chunks: bool, on_end: "OnEnd | None" = None
    ) -> None:
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": "antiphon",
            "gen_ai.response.id": response_id or None,
        }
        super().__init__(tracer, "invoke_agent", "internal", attributes)
        self.id = response_id
        self.calls: list[CallTrace] = []
        self.tools: list[ToolCallTrace] = []
        self.status = ""  # at the end
        self._tracer = tracer
        self._retain_chunks = retain_chunks
        self._on_end = on_end

    def start_call(self, engine: str, generation: GenerationRequest) -> CallTrace:
        self.calls.append(trace := CallTrace(engine, generation, self._retain_chunks, self._tracer))
        return trace

    def start_tool(self, kind: str, call: ModelToolCall) -> ToolCallTrace:
        self.tools.append(trace := ToolCallTrace(kind, call, self._tracer))
        return trace

    def end(self, status: str, model: str, counts: TokenCounts, error: AntiphonError | None = None) -> None:
        """Record the end. Only the first call counts."""
        if self.ended_at is not None:
            return
        self.status = status
        attributes = _usage_attributes(counts)
        attributes["antiphon.response.status"] = status
        if model:
            attributes["gen_ai.request.model"] = attributes["gen_ai.response.model"] = model
        self._end("" if error is None else error.code or "", attributes)
        if self._on_end is not None:
            self._on_end(self)


OnEnd = Callable[[RunTracer], None]


def _usage_attributes(counts: TokenCounts) -> dict[str, AttributeValue]:
    return {
        "gen_ai.usage.input_tokens": counts.input_tokens,
        "gen_ai.usage.cache_read.input_tokens": counts.cached_tokens,
        "gen_ai.usage.output_tokens": counts.output_tokens,
    }


def _encode_bounded(value: object) -> str:
    try:
        return encode(value)[:_MAX_ATTRIBUTE_CHARS].decode("utf-8", "ignore")
    except (TypeError, ValueError):  # values that cannot be encoded must not fail the response
        return ""


def _describe_request(engine: str, generation: GenerationRequest) -> tuple[str, Kind, dict[str, AttributeValue | None]]:
    """Return the name and kind of the span and the attributes that are available before the call."""
    operation = "chat" if isinstance(generation.prompt, ChatPrompt) else "text_completion"
    sampling = generation.sampling
    attributes: dict[str, AttributeValue | None] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": engine,
        "gen_ai.request.model": generation.model,
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.seed": sampling.seed,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
    }
    return f"{operation} {generation.model}", "client", attributes


def _input_messages(prompt: Prompt) -> list[Json]:
    """Return the messages of a chat; any other prompt becomes one user message."""
    match prompt:
        case ChatPrompt():
            return [{"role": message.get("role", ""), "parts": _message_parts(message)} for message in prompt.messages]
        case TextPrompt():
            text = "".join([segment.text for segment in prompt.segments])
            return [{"role": "user", "parts": [{"type": "text", "content": text}]}]
    return [{"role": "user", "parts": [{"type": "tokens", "content": [*prompt.tokens]}]}]


def _output_messages(chunks: Sequence[Chunk], finish: FinishKind | None) -> list[Json]:
    parts = [
        {"type": kind, "content": text}
        for kind, text in (
            ("reasoning", "".join([chunk.reasoning for chunk in chunks])),
            ("text", "".join([chunk.text for chunk in chunks])),
            ("refusal", "".join([chunk.refusal for chunk in chunks])),
        )
        if text
    ]
    return [{"role": "assistant", "parts": [*parts, *collect_calls(chunks)], "finish_reason": finish or ""}]


def collect_calls(chunks: Sequence[Chunk]) -> list[Json]:
    """Join the pieces of the tool calls of an engine that parses them itself."""
    calls_by_index: dict[int, Json] = {}
    for piece in (piece for chunk in chunks for piece in chunk.calls):
        call = calls_by_index.setdefault(piece.index, {"type": "tool_call", "name": "", "arguments": ""})
        call["name"] += piece.name
        call["arguments"] += piece.arguments
    return [*calls_by_index.values()]


def _message_parts(message: Json) -> list[Json]:
    content = message.get("content")
    pieces = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
    parts = [
        {"type": "text", "content": piece["text"]} if "text" in piece else {"type": piece["type"]} for piece in pieces
    ]
    functions = [call.get("function", {}) for call in message.get("tool_calls") or ()]
    calls = [
        {"type": "tool_call", "name": function.get("name"), "arguments": function.get("arguments")}
        for function in functions
    ]
    return [*parts, *calls]
