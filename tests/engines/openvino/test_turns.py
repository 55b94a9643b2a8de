"""The order in which texts are computed."""

import asyncio
from contextlib import suppress

import pytest

from antiphon.engines.openvino.turns import Turns

pytestmark = pytest.mark.anyio


class Computation:
    """Notes the order of turns, each of which takes a turn of the event loop."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.order: list[int] = []

    async def run(self, tokens: int) -> None:
        async with self.turns.take(tokens):
            await asyncio.sleep(0)
            self.order.append(tokens)

    async def run_all(self, *tokens: int) -> list[int]:
        await asyncio.gather(*map(self.run, tokens))
        return self.order


async def test_the_shortest_of_those_that_wait_is_next() -> None:
    assert await Computation().run_all(500, 400, 12, 400, 300) == [500, 12, 300, 400, 400]


async def test_a_long_text_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.engines.openvino.turns._SECONDS_PER_TOKEN", 0.0)
    assert await Computation().run_all(1, 500, 12, 3) == [1, 500, 12, 3]


@pytest.mark.parametrize("has_turn", [False, True])
async def test_who_leaves_passes_the_turn_on(has_turn: bool) -> None:
    computation = Computation()
    async with computation.turns.take(1):
        leaver, waiter = (asyncio.ensure_future(computation.run(tokens)) for tokens in (2, 3))
        await asyncio.sleep(0)
        if not has_turn:
            leaver.cancel()
            await asyncio.sleep(0)
    leaver.cancel()
    with suppress(asyncio.CancelledError):
        await leaver
    await waiter
    assert computation.order == [3]
    assert await computation.run_all(4) == [3, 4]
