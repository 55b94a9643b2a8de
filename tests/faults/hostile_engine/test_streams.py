"""Endless engine responses: the cost of a piece does not grow with the amount received, and the amount is bounded.

The hostile upstream drill sends a gigabyte of each kind; these tests send less.
"""

import asyncio
from collections.abc import Callable

import pytest

from antiphon.engines import client
from antiphon.engines.client import MAX_EVENT_BYTES, EventSplitter
from antiphon.engines.http.adapters.vllm import Vllm
from antiphon.engines.http.readers.call_repair import CallRepairer
from antiphon.engines.http.readers.wire import Function, WireToolCall
from antiphon.errors import EngineFailed
from tests.engines.http.stubs.generation import run_generation
from tests.engines.http.stubs.scripted_network import UNCHUNKED_HEAD, make_scripted_engine
from tests.support.cpu import measure_min_cpu_seconds, measure_slowdown

pytestmark = pytest.mark.anyio

SIZE_FACTOR = 6  # times the size
MAX_TIME_FACTOR = 3.0 * SIZE_FACTOR  # times the duration; quadratic code takes 36 times as long
HELLO = b'data: {"choices":[{"index":0,"delta":{"content":"hello"}}]}\n\n'


def measure_cost(operation: Callable[[int], None], size: int) -> float:
    return measure_min_cpu_seconds(lambda: operation(size), attempts=5)


def feed_one_line(pieces: int) -> None:
    splitter = EventSplitter()
    for _ in range(pieces):
        splitter.feed(b"x" * 100)


def feed_one_event_of_many_lines(pieces: int) -> None:
    splitter = EventSplitter()
    for _ in range(pieces):
        splitter.feed(b"data: x\r\n" * 10)


def feed_repeated_call_name(pieces: int) -> None:
    calls, call = CallRepairer(), WireToolCall(index=0, function=Function(name="a", arguments='{"a":[1,"}'))
    for _ in range(pieces):
        assert len(list(calls.repair([call]))) == 1


@pytest.mark.parametrize("operation", [feed_one_line, feed_one_event_of_many_lines, feed_repeated_call_name])
def test_the_cost_of_a_piece_does_not_grow_with_the_number_of_pieces(operation: Callable[[int], None]) -> None:
    pieces = 4_000
    assert measure_cost(operation, pieces * SIZE_FACTOR) < measure_cost(operation, pieces) * MAX_TIME_FACTOR


@pytest.mark.parametrize("line", [b"\n", b": ping\n\n", b":\n\n\n\n"])
def test_keepalive_lines_are_cheap(line: bytes) -> None:
    """A read full of them blocks the event loop only briefly."""

    def read(times: int) -> None:
        assert EventSplitter().feed(line * times) == []

    assert measure_cost(read, 256 * 1024 // len(line)) < 0.15 * measure_slowdown()


@pytest.mark.parametrize("size", [100, 65536])
def test_an_endless_event_is_rejected(size: int) -> None:
    splitter = EventSplitter()
    for _ in range(MAX_EVENT_BYTES // size):
        assert splitter.feed(b"x" * size) == []
    with pytest.raises(EngineFailed, match="exceeds the size limit"):
        splitter.feed(b"x" * size)


async def test_an_endless_response_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_STREAM_BYTES", 100_000)
    async with asyncio.timeout(60):
        result = await run_generation(make_scripted_engine(Vllm, UNCHUNKED_HEAD, *[HELLO * 50] * 1000, hangs_up=False))
    assert isinstance(result.error, EngineFailed)
    assert "exceeds the size limit" in str(result.error)
    assert 100_000 * 5 / len(HELLO) * 0.9 < len(result.text) < 100_000 * 5 / len(HELLO) * 1.1


async def test_an_event_broken_across_lines_fails_wherever_the_stream_is_split() -> None:
    """JSON may contain line breaks, a data line of an event may not."""
    broken = HELLO + HELLO.replace(b'"index":0,', b'"index":0\n,') + HELLO
    for pieces in ([broken], [HELLO, broken[len(HELLO) :]], [broken[at : at + 7] for at in range(0, len(broken), 7)]):
        result = await run_generation(make_scripted_engine(Vllm, UNCHUNKED_HEAD, *pieces))
        assert result.text == "hello"
        assert isinstance(result.error, EngineFailed)
