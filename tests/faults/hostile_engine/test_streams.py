"""Answers without an end: what an engine sends costs no more the more there is of it, and there is an end to what is
taken. The drill of the hostile upstream sends a gigabyte of each; here it is less.
"""

import asyncio
from collections.abc import Callable

import pytest

from antiphon.engines import client
from antiphon.engines.http.adapters.vllm import Vllm
from antiphon.engines.http.readers.call_repair import Calls
from antiphon.engines.http.readers.wire import Function, ToolCall
from antiphon.engines.sse import MAX_EVENT_BYTES, EventSplitter
from antiphon.errors import EngineFailed
from tests.engines.http.stubs.generation import ask
from tests.engines.http.stubs.scripted_network import BARE, playing
from tests.support.cpu import least_spent_on, slowness

pytestmark = pytest.mark.anyio

MORE = 6  # times as much
MOST = 3.0 * MORE  # times as long; what grows with the square takes 36 times as long
HELLO = b'data: {"choices":[{"index":0,"delta":{"content":"hello"}}]}\n\n'


def costs(work: Callable[[int], None], size: int) -> float:
    return least_spent_on(lambda: work(size), tries=5)


def one_line(pieces: int) -> None:
    splitter = EventSplitter()
    for _ in range(pieces):
        splitter.feed(b"x" * 100)


def one_event_of_many_lines(pieces: int) -> None:
    splitter = EventSplitter()
    for _ in range(pieces):
        splitter.feed(b"data: x\r\n" * 10)


def one_name_over_and_over(pieces: int) -> None:
    calls, call = Calls(), ToolCall(index=0, function=Function(name="a", arguments='{"a":[1,"}'))
    for _ in range(pieces):
        assert len(list(calls.pieces([call]))) == 1


@pytest.mark.parametrize("work", [one_line, one_event_of_many_lines, one_name_over_and_over])
def test_a_piece_costs_the_same_however_many_came_before_it(work: Callable[[int], None]) -> None:
    pieces = 4_000
    assert costs(work, pieces * MORE) < costs(work, pieces) * MOST


@pytest.mark.parametrize("line", [b"\n", b": ping\n\n", b":\n\n\n\n"])
def test_signs_of_life_cost_next_to_nothing(line: bytes) -> None:
    """A read of them holds nobody up for long."""

    def read(times: int) -> None:
        assert EventSplitter().feed(line * times) == []

    assert costs(read, 256 * 1024 // len(line)) < 0.15 * slowness()


@pytest.mark.parametrize("size", [100, 65536])
def test_an_event_without_an_end_is_given_up(size: int) -> None:
    splitter = EventSplitter()
    for _ in range(MAX_EVENT_BYTES // size):
        assert splitter.feed(b"x" * size) == []
    with pytest.raises(EngineFailed, match="without an end"):
        splitter.feed(b"x" * size)


async def test_an_answer_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_STREAM_BYTES", 100_000)
    async with asyncio.timeout(60):
        said = await ask(playing(Vllm, BARE, *[HELLO * 50] * 1000, hangs_up=False))
    assert isinstance(said.error, EngineFailed)
    assert "without an end" in str(said.error)
    assert 100_000 * 5 / len(HELLO) * 0.9 < len(said.text) < 100_000 * 5 / len(HELLO) * 1.1


async def test_lines_that_only_look_like_one_event_are_the_same_wherever_they_are_cut() -> None:
    """JSON may be broken into lines, an event may not."""
    broken = HELLO + HELLO.replace(b'"index":0,', b'"index":0\n,') + HELLO
    for pieces in ([broken], [HELLO, broken[len(HELLO) :]], [broken[at : at + 7] for at in range(0, len(broken), 7)]):
        said = await ask(playing(Vllm, BARE, *pieces))
        assert said.text == "hello"
        assert isinstance(said.error, EngineFailed)
