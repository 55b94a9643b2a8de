"""Trace spans as values: parent, start, end and attributes. `observe/tracing.py` exports them.

The current span is a context variable and is propagated to engines and MCP servers as W3C `traceparent`. A client's
trace context is propagated even if this server exports no spans. Without either there is no current span and no cost.
"""

import random
import time
from contextvars import ContextVar
from typing import Literal, Protocol, Self

from msgspec import Struct

Kind = Literal["server", "client", "internal"]
AttributeValue = str | int | float | bool | list[str]

_MAX_TRACESTATE = 512  # characters; W3C Trace Context: at least 512 should be propagated, longer ones may be dropped
_HEX = b"0123456789abcdef"
_VISIBLE = bytes(range(0x20, 0x7F))


class TraceContext(Struct, frozen=True):
    """A W3C trace context: the content of `traceparent` and `tracestate`."""

    trace_id: int
    span_id: int
    sampled: bool
    state: str = ""  # tracestate, as received
    is_local: bool = False  # of a span of this server, not of a client

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.sampled:02x}"


class Span(Struct, kw_only=True, eq=False):
    """One operation of a trace."""

    name: str
    kind: Kind
    context: TraceContext  # its own ids
    parent: TraceContext | None
    started_ns: int  # nanoseconds since the epoch
    ended_ns: int = 0
    attributes: dict[str, AttributeValue]
    error: str = ""  # error type, if it failed


CURRENT_SPAN: ContextVar[TraceContext | None] = ContextVar("span", default=None)  # the context of that span


class Tracer(Protocol):
    """Exports ended spans and decides which traces are sampled."""

    content: bool  # whether prompts and outputs may be exported

    def should_sample(self, trace: int, name: str, parent: TraceContext | None) -> bool:
        """Decide for a trace that starts here or comes from another service."""

    def export(self, span: Span) -> None:
        """Export an ended span. Never blocks and never raises."""


class ActiveSpan:
    """A span in progress, which is the current span inside its `with` block."""

    __slots__ = ("_before", "_tracer", "span")

    def __init__(self, tracer: Tracer, name: str, kind: Kind, attributes: dict[str, AttributeValue]) -> None:
        self._before = parent = CURRENT_SPAN.get()
        self._tracer = tracer
        self.span = Span(
            name=name,
            kind=kind,
            context=_make_context(tracer, name, parent),
            parent=parent,
            started_ns=time.time_ns(),
            attributes=attributes,
        )

    def __enter__(self) -> Self:
        CURRENT_SPAN.set(self.span.context)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        CURRENT_SPAN.set(self._before)  # no token: another task may end it
        self.end("" if kind is None else kind.__name__)

    def end(self, error: str = "") -> None:
        """End the span, once; later calls have no effect."""
        span = self.span
        if span.ended_ns:
            return
        span.ended_ns = time.time_ns()
        span.error = span.error or error
        if span.context.sampled:
            self._tracer.export(span)


def parse_traceparent(header: bytes, state: bytes = b"") -> TraceContext | None:
    """Parse a `traceparent` header; None if it is malformed, which counts as absent."""
    parts = header.split(b"-")
    if [len(part) for part in parts[:4]] != [2, 32, 16, 2] or b"".join(parts[:4]).translate(None, _HEX):
        return None
    version, trace, span, flags = (int(part, 16) for part in parts[:4])
    if version == 0xFF or not trace or not span or (version == 0 and len(parts) > 4):
        return None
    is_valid = len(state) <= _MAX_TRACESTATE and not state.translate(None, _VISIBLE)
    return TraceContext(trace, span, bool(flags & 1), state.decode("ascii") if is_valid else "")


def make_trace_headers() -> list[tuple[str, str]]:
    """Return the headers that propagate the current trace to a called service; empty without a trace."""
    if (current := CURRENT_SPAN.get()) is None:
        return []
    return [("traceparent", current.traceparent), *([("tracestate", current.state)] if current.state else [])]


def _make_context(tracer: Tracer, name: str, parent: TraceContext | None) -> TraceContext:
    trace, state = (random.getrandbits(128) or 1, "") if parent is None else (parent.trace_id, parent.state)
    sampled = parent.sampled if parent is not None and parent.is_local else tracer.should_sample(trace, name, parent)
    return TraceContext(trace, random.getrandbits(64) or 1, sampled, state, is_local=True)
