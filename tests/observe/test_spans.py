"""Tests spans, their nesting and sampling, and the W3C `traceparent` and `tracestate` headers.

Covers `observe/tracing.py`.
"""

import pytest

from antiphon.observe.spans import CURRENT_SPAN, ActiveSpan, Span, TraceContext, make_trace_headers, parse_traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class RecordingTracer:
    """A tracer that records sampling decisions and exported spans."""

    content = False

    def __init__(self, sampled: bool = True) -> None:
        self.sampled = sampled
        self.parents: list[TraceContext | None] = []
        self.spans: list[Span] = []

    def should_sample(self, trace: int, name: str, parent: TraceContext | None) -> bool:
        self.parents.append(parent)
        return self.sampled

    def export(self, span: Span) -> None:
        self.spans.append(span)


def test_a_traceparent_round_trips_in_w3c_format() -> None:
    for flags, sampled in (("00", False), ("01", True), ("03", True)):
        context = parse_traceparent(f"00-{TRACE}-{SPAN}-{flags}".encode(), b"vendor=1,other=2")
        assert context == TraceContext(int(TRACE, 16), int(SPAN, 16), sampled, "vendor=1,other=2")
        assert context.traceparent == f"00-{TRACE}-{SPAN}-0{int(sampled)}"


def test_a_newer_traceparent_version_is_parsed() -> None:
    assert parse_traceparent(f"cc-{TRACE}-{SPAN}-01-what-ever".encode()) is not None


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"00",
        f"00-{TRACE}-{SPAN}".encode(),
        f"00-{TRACE}-{SPAN}-01-more".encode(),
        f"ff-{TRACE}-{SPAN}-01".encode(),
        f"00-{'0' * 32}-{SPAN}-01".encode(),
        f"00-{TRACE}-{'0' * 16}-01".encode(),
        f"00-{TRACE.upper()}-{SPAN}-01".encode(),
        f"00-{TRACE[:-1]}g-{SPAN}-01".encode(),
        f"00-{TRACE}-{SPAN}-1 ".encode(),
        b"\xff" * 55,
        f"00-{TRACE}-{SPAN}-01\r\nx: y".encode(),
    ],
)
def test_a_malformed_traceparent_is_treated_as_absent(header: bytes) -> None:
    assert parse_traceparent(header) is None


@pytest.mark.parametrize("state", [b"a" * 513, b"a=\r\nb: c", b"\xff"])
def test_an_invalid_or_oversized_tracestate_is_dropped(state: bytes) -> None:
    context = parse_traceparent(f"00-{TRACE}-{SPAN}-01".encode(), state)
    assert context is not None
    assert context.state == ""


def test_nested_spans_are_parent_and_child() -> None:
    tracer = RecordingTracer()
    with ActiveSpan(tracer, "a", "server", {}) as a:
        assert CURRENT_SPAN.get() is a.span.context
        with ActiveSpan(tracer, "b", "client", {}) as b:
            assert dict(make_trace_headers()) == {"traceparent": b.span.context.traceparent}
        assert CURRENT_SPAN.get() is a.span.context
    assert CURRENT_SPAN.get() is None
    assert make_trace_headers() == []
    assert [span.name for span in tracer.spans] == ["b", "a"]
    assert b.span.parent == a.span.context
    assert b.span.context.trace_id == a.span.context.trace_id
    assert tracer.parents == [None]  # sampling is decided once per trace


def test_an_unsampled_trace_is_propagated_but_not_exported() -> None:
    tracer = RecordingTracer(sampled=False)
    with ActiveSpan(tracer, "a", "server", {}), ActiveSpan(tracer, "b", "client", {}):
        [(_, value)] = make_trace_headers()
        assert value.endswith("-00")
    assert tracer.spans == []


def test_a_client_trace_is_continued() -> None:
    tracer, origin = RecordingTracer(), parse_traceparent(f"00-{TRACE}-{SPAN}-01".encode(), b"v=1")
    before = CURRENT_SPAN.set(origin)
    try:
        assert dict(make_trace_headers()) == {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "v=1"}
        with ActiveSpan(tracer, "a", "server", {}) as a:
            assert dict(make_trace_headers())["tracestate"] == "v=1"
    finally:
        CURRENT_SPAN.reset(before)
    assert tracer.parents == [origin]
    assert a.span.parent == origin
    assert f"{a.span.context.trace_id:032x}" == TRACE


def test_an_exception_is_recorded_on_the_span_and_propagates() -> None:
    tracer = RecordingTracer()
    with pytest.raises(ZeroDivisionError), ActiveSpan(tracer, "a", "internal", {}):
        raise ZeroDivisionError
    assert tracer.spans[0].error == "ZeroDivisionError"
    assert CURRENT_SPAN.get() is None
