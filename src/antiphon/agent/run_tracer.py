"""Records the model calls and tool calls of a run with their timing, for tracing. Untraced runs have no tracer.

Attributes of spans follow the OpenTelemetry semantic conventions for generative AI (`gen_ai.*`).

tracer = call.new_tracer(response_id)                 ModelCall.new_tracer
trace = tracer.start_call(engine, generation)         the current span until its end, propagated to the engine
feed = trace.wrap_feed(feed)                          retains the chunks, if requested
trace.end(finish, counts, error)
with tracer.start_tool(kind, call) as trace: …
tracer.end(status, model, counts, error)
"""

from collections.abc import Callable, Sequence
from time import time
from typing import Any, Self, TypeVar

from msgspec.json import encode

from antiphon.core.prompt import ChatPrompt, Chunk, FinishKind, GenerationRequest, Prompt, TextPrompt, TokenCounts
from antiphon.errors import AntiphonError
from antiphon.observe.spans import ActiveSpan, AttributeValue, Tracer
from antiphon.tools.base import ModelToolCall

T = TypeVar("T")
Json = dict[str, Any]

_MAX_CHUNKS = 100_000  # retained per call; later chunks are dropped
_MAX_ATTRIBUTE_CHARS = 32 * 1024  # collectors reject attributes that are much longer


class CallTrace:
    """Trace of one model call."""

    def __init__(self, engine: str, generation: GenerationRequest, retain_chunks: bool, tracer: Tracer | None) -> None:
        self.engine = engine
        self.generation = generation
        self.started_at = time()
        self.ready_at: float | None = None  # when the call got its slot of the model
        self.first_at: float | None = None
        self.ended_at: float | None = None
        self.finish: FinishKind | None = None
        self.counts = TokenCounts()
        self.error = ""
        self.chunks: list[Chunk] = []
        self._tracer = tracer
        self._retain_chunks = retain_chunks or (tracer is not None and tracer.content)
        name, attributes = _describe_request(engine, generation)
        self._span = None if tracer is None else ActiveSpan(tracer, name, "client", attributes).__enter__()

    def end(self, finish: FinishKind | None, counts: TokenCounts, error: BaseException | None) -> None:
        self.ended_at, self.finish, self.counts = time(), finish, counts
        self.error = "" if error is None else getattr(error, "code", None) or type(error).__name__
        if self._span is not None:
            self._set_attributes(self._span)
            self._span.__exit__(None, None, None)

    def wrap_feed(self, feed: Callable[[list[Chunk]], list[T]]) -> Callable[[list[Chunk]], list[T]]:
        """Wrap `feed` so that the time of the first chunk and, if requested, the chunks are recorded."""

        def feed_and_record(chunks: list[Chunk]) -> list[T]:
            if self.first_at is None and chunks:
                self.first_at = time()
            if self._retain_chunks and len(self.chunks) < _MAX_CHUNKS:
                self.chunks += chunks
            return feed(chunks)

        return feed_and_record

    def _set_attributes(self, span: ActiveSpan) -> None:
        attributes = span.span.attributes
        attributes |= _usage_attributes(self.counts)
        attributes["gen_ai.response.model"] = self.generation.model
        if self.finish is not None:
            attributes["gen_ai.response.finish_reasons"] = [self.finish]
        if self.first_at is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = self.first_at - self.started_at
        if self._tracer is not None and self._tracer.content:
            attributes["gen_ai.input.messages"] = _encode_bounded(_input_messages(self.generation.prompt))
            attributes["gen_ai.output.messages"] = _encode_bounded(_output_messages(self.chunks, self.finish))
        _set_error(span, self.error)


class ToolCallTrace:
    """Trace of one tool call that the server runs."""

    def __init__(self, kind: str, call: ModelToolCall, tracer: Tracer | None) -> None:
        self.kind = kind
        self.call = call
        self.started_at = time()
        self.ended_at: float | None = None
        self.outcome = ""
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.type": "extension" if kind == "mcp" else "function",
            "gen_ai.tool.call.id": call.id,
        }
        if tracer is not None and tracer.content:
            attributes["gen_ai.tool.call.arguments"] = call.arguments[:_MAX_ATTRIBUTE_CHARS]
        self._span = None if tracer is None else ActiveSpan(tracer, f"execute_tool {call.name}", "internal", attributes)

    def __enter__(self) -> Self:
        if self._span is not None:
            self._span.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.ended_at = time()
        if self._span is not None:
            _set_error(self._span, self.outcome if self.outcome != "completed" else "")
            self._span.__exit__(kind, error, trace)


class RunTracer:
    """Trace of one run.

    `retain_chunks`: keep the model output. `on_end` is called with this tracer at the end.
    """

    def __init__(
        self, response_id: str, tracer: Tracer | None, retain_chunks: bool, on_end: "OnEnd | None" = None
    ) -> None:
        self.id = response_id
        self.started_at = time()
        self.ended_at: float | None = None
        self.calls: list[CallTrace] = []
        self.tools: list[ToolCallTrace] = []
        self.status = ""  # at the end
        self.error = ""  # error code
        self._tracer = tracer
        self._retain_chunks = retain_chunks
        self._on_end = on_end
        self._span: ActiveSpan | None = None
        if tracer is not None:
            attributes: dict[str, AttributeValue] = {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.provider.name": "antiphon",
            }
            if response_id:
                attributes["gen_ai.response.id"] = response_id
            self._span = ActiveSpan(tracer, "invoke_agent", "internal", attributes)
            self._span.__enter__()

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
        self.status, self.error, self.ended_at = status, "" if error is None else error.code or "", time()
        if (span := self._span) is not None:
            attributes = span.span.attributes
            attributes |= _usage_attributes(counts)
            attributes["antiphon.response.status"] = status
            if model:
                attributes["gen_ai.request.model"] = attributes["gen_ai.response.model"] = model
            _set_error(span, self.error)
            span.__exit__(None, None, None)
        if self._on_end is not None:
            self._on_end(self)


OnEnd = Callable[[RunTracer], None]


def _usage_attributes(counts: TokenCounts) -> dict[str, AttributeValue]:
    return {
        "gen_ai.usage.input_tokens": counts.input_tokens,
        "gen_ai.usage.cache_read.input_tokens": counts.cached_tokens,
        "gen_ai.usage.output_tokens": counts.output_tokens,
    }


def _set_error(span: ActiveSpan, error: str) -> None:
    if error:
        span.span.error = error
        span.span.attributes["error.type"] = error


def _encode_bounded(value: object) -> str:
    try:
        return encode(value)[:_MAX_ATTRIBUTE_CHARS].decode("utf-8", "ignore")
    except (TypeError, ValueError):  # values that cannot be encoded must not fail the response
        return ""


def _describe_request(engine: str, generation: GenerationRequest) -> tuple[str, dict[str, AttributeValue]]:
    """Return the name of the span and the attributes that are available before the call."""
    operation = "chat" if isinstance(generation.prompt, ChatPrompt) else "text_completion"
    sampling = generation.sampling
    options = {
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.seed": sampling.seed,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
    }
    attributes: dict[str, AttributeValue] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": engine,
        "gen_ai.request.model": generation.model,
        **{name: value for name, value in options.items() if value is not None},
    }
    return f"{operation} {generation.model}", attributes


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
    """Return the output as one assistant message."""
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
        {"type": "text", "content": piece["text"]}
        if isinstance(piece, dict) and isinstance(piece.get("text"), str)
        else {"type": piece.get("type", "part") if isinstance(piece, dict) else "part"}
        for piece in pieces
    ]
    functions = [call.get("function", {}) for call in message.get("tool_calls") or ()]
    calls = [
        {"type": "tool_call", "name": function.get("name"), "arguments": function.get("arguments")}
        for function in functions
    ]
    return [*parts, *calls]
