"""Traces of the last responses for debugging: prompts as sent to the engines, their output, and timings of turns and
tools.

They are held only in memory, within limits, and only with --keep-traces.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from time import time

from msgspec.json import encode
from msgspec.structs import asdict

from antiphon.agent.run_tracer import CallTrace, RunTracer, ToolCallTrace, collect_calls
from antiphon.core.prompt import ChatPrompt, Chunk, Prompt, Sampling, TextPrompt
from antiphon.errors import NotFound
from antiphon.protocol.types.operations.inspection import SpanKind, TimeSpan
from antiphon.protocol.types.traces import Heard, ResponseTrace, Shown, ToolTrace, TurnTrace, TurnUsage

MAX_BYTES = 64 * 1024 * 1024  # of all traces
_MAX_TRACE_FRACTION = 8  # 1/8 of that for one trace
_MAX_SPANS = 500  # of one response


class TraceStore:
    def __init__(self, max_responses: int, max_bytes: int = MAX_BYTES) -> None:
        """`max_responses`: 0 disables traces."""
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._bodies: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._bytes = 0
        self._spans: OrderedDict[tuple[str, str], list[TimeSpan]] = OrderedDict()  # also of responses that run

    @property
    def is_enabled(self) -> bool:
        return self._max_responses > 0

    def store(self, tenant: str, tracer: RunTracer) -> None:
        """Store the trace of a run that has ended, without its content if it is too large. Called by RunTracer."""
        if not tracer.id:
            return
        try:
            body = encode(_to_trace(tracer, True))
        except (TypeError, ValueError):  # content that cannot be encoded must not fail the response
            body = b""
        if not body or len(body) > self._max_bytes // _MAX_TRACE_FRACTION:
            body = encode(_to_trace(tracer, False))
        spans = [span for call in tracer.calls for span in _split_call(call)]
        for tool in tracer.tools:
            spans.append(_make_span("tool", tool.call.name, tool.started_at, tool.ended_at, tool.error))
        self._add_spans((tenant, tracer.id), spans)
        self._drop(tenant, tracer.id)
        self._bodies[tenant, tracer.id] = body
        self._bytes += len(body)
        while self._bodies and (len(self._bodies) > self._max_responses or self._bytes > self._max_bytes):
            self._bytes -= len(self._bodies.popitem(last=False)[1])

    def note_write(self, tenant: str, response_id: str, kind: str, began: float) -> None:
        """Note a write to the store that ends now. Those of a response come before and after its run."""
        self._add_spans((tenant, response_id), [_make_span("write", kind, began, time())])

    def find_spans(self, tenant: str, response_id: str) -> list[TimeSpan] | None:
        """Return where the time of a response went, in the order of the beginnings; None if there is no trace."""
        key = tenant, response_id
        spans = self._spans.get(key, []) if key in self._bodies else []
        return sorted(spans, key=lambda span: span.began) or None

    def find(self, tenant: str, response_id: str) -> bytes:
        """Return the trace. Raises NotFound with the remedy."""
        if not self._max_responses:
            raise NotFound("This server stores no traces. The operator can enable them with --keep-traces N.")
        if (body := self._bodies.get((tenant, response_id))) is None:
            raise NotFound(
                f"There is no trace of the response {response_id[:80]!r}: this process stores those of the last"
                f" {self._max_responses} that it ran."
            )
        return body

    def forget(self, tenant: str, response_id: str) -> None:
        """Drop the trace of a deleted response."""
        self._spans.pop((tenant, response_id), None)
        self._drop(tenant, response_id)

    def _add_spans(self, key: tuple[str, str], spans: list[TimeSpan]) -> None:
        recorded = self._spans.setdefault(key, [])
        if len(recorded) < _MAX_SPANS:
            recorded += spans
        while len(self._spans) > self._max_responses:
            self._spans.popitem(last=False)

    def _drop(self, tenant: str, response_id: str) -> None:
        if (body := self._bodies.pop((tenant, response_id), None)) is not None:
            self._bytes -= len(body)


def _to_trace(tracer: RunTracer, with_content: bool) -> ResponseTrace:
    return ResponseTrace(
        id=tracer.id,
        status=tracer.status,
        error=tracer.error or None,
        began=tracer.started_at,
        seconds=_duration(tracer.started_at, tracer.ended_at),
        whole=with_content,
        turns=[_to_turn(call, with_content) for call in tracer.calls],
        tools=[_to_tool(tool, with_content) for tool in tracer.tools],
    )


def _to_turn(call: CallTrace, with_content: bool) -> TurnTrace:
    return TurnTrace(
        engine=call.engine,
        model=call.generation.model,
        prompt=_to_prompt(call.generation.prompt) if with_content else None,
        sampling=_changed_values(call.generation.sampling),
        output=_to_output(call.chunks) if with_content else None,
        finish=call.finish,
        error=call.error or None,
        usage=TurnUsage(**asdict(call.counts)),
        began=call.started_at,
        waited=_duration(call.started_at, call.ready_at),
        first_token=_duration(call.started_at, call.first_at),
        seconds=_duration(call.started_at, call.ended_at),
    )


def _to_tool(tool: ToolCallTrace, with_content: bool) -> ToolTrace:
    return ToolTrace(
        kind=tool.kind,
        id=tool.call.id,
        name=tool.call.name,
        server=tool.call.namespace,
        arguments=tool.call.arguments if with_content else None,
        outcome=tool.outcome,
        began=tool.started_at,
        seconds=_duration(tool.started_at, tool.ended_at),
    )


def _split_call(call: CallTrace) -> Iterator[TimeSpan]:
    """Yield the parts of a model call that it has reached."""
    ended, engine, begun = call.ended_at or call.started_at, call.engine, call.ready_at
    yield _make_span("queue", "", call.started_at, call.ready_at or ended)
    for attempt in call.attempts:
        engine, begun = attempt.engine, attempt.started_at
        if attempt.error:
            yield _make_span("attempt", engine, begun, attempt.ended_at, attempt.error)
            begun = None
    if begun is not None:
        yield _make_span("prefill", engine, begun, call.first_at or ended)
    if call.first_at is not None:
        yield _make_span("decode", engine, call.first_at, ended, call.error)


def _make_span(kind: SpanKind, name: str, began: float, ended: float | None, error: str = "") -> TimeSpan:
    return TimeSpan(kind=kind, name=name, began=began, seconds=_duration(began, ended) or 0.0, error=error or None)


def _duration(began: float, ended: float | None) -> float | None:
    return None if ended is None else round(ended - began, 6)


def _to_prompt(prompt: Prompt) -> Shown:
    match prompt:
        case ChatPrompt():
            return Shown(kind="chat", messages=[*prompt.messages], tools=[*prompt.tools])
        case TextPrompt():
            return Shown(kind="text", text="".join([segment.text for segment in prompt.segments]))
    return Shown(kind="tokens", tokens=[*prompt.tokens])


def _to_output(chunks: Sequence[Chunk]) -> Heard:
    return Heard(
        text="".join([chunk.text for chunk in chunks]),
        thought="".join([chunk.reasoning for chunk in chunks]),
        refusal="".join([chunk.refusal for chunk in chunks]),
        calls=collect_calls(chunks),
        tokens=[token for chunk in chunks for token in chunk.tokens],
    )


def _changed_values(sampling: Sampling) -> dict[str, object]:
    defaults = Sampling()
    values = {name: getattr(sampling, name) for name in sampling.__struct_fields__}
    return {name: value for name, value in values.items() if value != getattr(defaults, name)}
