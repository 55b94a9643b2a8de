"""Spans of a trace, as values: who is whose child, from when to when, and what is known. Nothing is exported here.

The current one is found by context, and is what others are told of as W3C's `traceparent`: engines and MCP servers. A
client's own is handed on though nobody here traces. Without either there is no current one, and nothing costs anything.
"""

import random
import time
from contextvars import ContextVar
from typing import Literal, Protocol, Self

from msgspec import Struct

Kind = Literal["server", "client", "internal"]
Value = str | int | float | bool | list[str]

_LONGEST_STATE = 512  # characters of a tracestate; longer ones may be dropped, says W3C
_HEX = b"0123456789abcdef"
_VISIBLE = bytes(range(0x20, 0x7F))


class Origin(Struct, frozen=True):
    """Where a trace comes from: what a `traceparent` says."""

    trace: int
    span: int
    sampled: bool
    state: str = ""  # tracestate, as it came

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace:032x}-{self.span:016x}-{self.sampled:02x}"

    @property
    def origin(self) -> "Origin":
        return self


class Span(Struct, kw_only=True, eq=False):
    name: str
    kind: Kind
    origin: Origin  # its own ids
    parent: Origin | None
    began: int  # nanoseconds since the epoch
    ended: int = 0
    attributes: dict[str, Value]
    error: str = ""  # what kind of one it ended with

    @property
    def traceparent(self) -> str:
        return self.origin.traceparent

    @property
    def state(self) -> str:
        return self.origin.state


Current = Span | Origin
CURRENT: ContextVar[Current | None] = ContextVar("span", default=None)


class Tracer(Protocol):
    """Takes the spans that ended, and says which traces are wanted."""

    content: bool  # whether what was said may be told too

    def samples(self, trace: int, name: str, parent: Origin | None) -> bool:
        """For one that begins here, or comes from elsewhere."""

    def export(self, span: Span) -> None:
        """It ended. Does not wait, and does not fail."""


class Watched:
    """A span while it lasts, within which it is the current one."""

    __slots__ = ("_before", "_tracer", "span")

    def __init__(self, tracer: Tracer, name: str, kind: Kind, attributes: dict[str, Value]) -> None:
        before = CURRENT.get()
        parent = None if before is None else before.origin
        self._tracer = tracer
        self._before = before
        self.span = Span(
            name=name,
            kind=kind,
            origin=_child(tracer, name, parent, isinstance(before, Span)),
            parent=parent,
            began=time.time_ns(),
            attributes=attributes,
        )

    def __enter__(self) -> Self:
        CURRENT.set(self.span)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        CURRENT.set(self._before)  # not by a token: it may be another task that ends it
        self.end("" if kind is None else kind.__name__)

    def end(self, error: str = "") -> None:
        """Once; what comes first counts."""
        span = self.span
        if span.ended:
            return
        span.ended = time.time_ns()
        span.error = span.error or error
        if span.origin.sampled:
            self._tracer.export(span)


def read_traceparent(header: bytes, state: bytes = b"") -> Origin | None:
    """None for what is malformed: it is as if it had not come."""
    parts = header.split(b"-")
    if [len(part) for part in parts[:4]] != [2, 32, 16, 2] or b"".join(parts[:4]).translate(None, _HEX):
        return None
    version, trace, span, flags = (int(part, 16) for part in parts[:4])
    if version == 0xFF or not trace or not span or (version == 0 and len(parts) > 4):
        return None
    sound = len(state) <= _LONGEST_STATE and not state.translate(None, _VISIBLE)
    return Origin(trace, span, bool(flags & 1), state.decode("ascii") if sound else "")


def handed_on() -> list[tuple[str, str]]:
    """The headers by which whoever is asked next goes on with the trace; none, if there is none."""
    current = CURRENT.get()
    if current is None:
        return []
    state = current.state
    return [("traceparent", current.traceparent), *([("tracestate", state)] if state else [])]


def _child(tracer: Tracer, name: str, parent: Origin | None, ours: bool) -> Origin:
    trace = random.getrandbits(128) or 1 if parent is None else parent.trace
    sampled = parent.sampled if ours and parent is not None else tracer.samples(trace, name, parent)
    return Origin(trace, random.getrandbits(64) or 1, sampled, "" if parent is None else parent.state)
