import pytest

from antiphon.observe.spans import CURRENT, Origin, Span, Watched, handed_on, read_traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Listener:
    """A tracer that keeps what it gets."""

    content = False

    def __init__(self, wants: bool = True) -> None:
        self.wants = wants
        self.asked: list[Origin | None] = []
        self.spans: list[Span] = []

    def samples(self, trace: int, name: str, parent: Origin | None) -> bool:
        self.asked.append(parent)
        return self.wants

    def export(self, span: Span) -> None:
        self.spans.append(span)


def test_a_traceparent_is_read_and_written_as_w3c_has_it() -> None:
    for flags, sampled in (("00", False), ("01", True), ("03", True)):
        read = read_traceparent(f"00-{TRACE}-{SPAN}-{flags}".encode(), b"vendor=1,other=2")
        assert read == Origin(int(TRACE, 16), int(SPAN, 16), sampled, "vendor=1,other=2")
        assert read.traceparent == f"00-{TRACE}-{SPAN}-0{int(sampled)}"


def test_a_newer_version_is_read_as_far_as_we_know_it() -> None:
    assert read_traceparent(f"cc-{TRACE}-{SPAN}-01-what-ever".encode()) is not None


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
def test_what_is_malformed_did_not_come(header: bytes) -> None:
    assert read_traceparent(header) is None


@pytest.mark.parametrize("state", [b"a" * 513, b"a=\r\nb: c", b"\xff"])
def test_a_tracestate_that_may_harm_is_left_out(state: bytes) -> None:
    read = read_traceparent(f"00-{TRACE}-{SPAN}-01".encode(), state)
    assert read is not None
    assert read.state == ""


def test_spans_are_each_others_children_while_they_last() -> None:
    listener = Listener()
    with Watched(listener, "a", "server", {}) as a:
        assert CURRENT.get() is a.span
        with Watched(listener, "b", "client", {}) as b:
            assert dict(handed_on()) == {"traceparent": b.span.traceparent}
        assert CURRENT.get() is a.span
    assert CURRENT.get() is None
    assert handed_on() == []
    assert [span.name for span in listener.spans] == ["b", "a"]
    assert b.span.parent == a.span.origin
    assert b.span.origin.trace == a.span.origin.trace
    assert listener.asked == [None]  # of a trace, it is asked once


def test_one_that_nobody_wants_is_not_exported_but_handed_on() -> None:
    listener = Listener(wants=False)
    with Watched(listener, "a", "server", {}), Watched(listener, "b", "client", {}):
        [(_, value)] = handed_on()
        assert value.endswith("-00")
    assert listener.spans == []


def test_a_clients_trace_is_gone_on_with() -> None:
    listener, origin = Listener(), read_traceparent(f"00-{TRACE}-{SPAN}-01".encode(), b"v=1")
    before = CURRENT.set(origin)
    try:
        assert dict(handed_on()) == {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "v=1"}
        with Watched(listener, "a", "server", {}) as a:
            assert dict(handed_on())["tracestate"] == "v=1"
    finally:
        CURRENT.reset(before)
    assert listener.asked == [origin]
    assert a.span.parent == origin
    assert f"{a.span.origin.trace:032x}" == TRACE


def test_what_is_raised_is_told_and_passed_on() -> None:
    listener = Listener()
    with pytest.raises(ZeroDivisionError), Watched(listener, "a", "internal", {}):
        raise ZeroDivisionError
    assert listener.spans[0].error == "ZeroDivisionError"
    assert CURRENT.get() is None
