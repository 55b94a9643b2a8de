"""Delivery of JSON bodies: concurrent requests go through the stages together, and a single request does not wait."""

import asyncio

import pytest

from antiphon.transport.http.channel import ClientGone
from antiphon.transport.streaming.delivery import StageScheduler
from tests.transport.server.recording_transport import RecordingConnection

pytestmark = pytest.mark.anyio


async def test_concurrent_requests_all_finish_a_stage_before_any_starts_the_next() -> None:
    scheduler, seen = StageScheduler(), list[str]()

    async def work(name: str) -> None:
        with scheduler:
            for stage in ("one", "two", "three"):
                if (turn := scheduler.yield_turn()) is not None:
                    await turn
                seen.append(f"{name} {stage}")

    with scheduler:  # another request, which waits for its reply
        await asyncio.gather(*map(work, "abc"))
    assert seen == ["a one", "b one", "c one", "a two", "b two", "c two", "a three", "b three", "c three"]


def test_a_single_request_does_not_yield() -> None:
    scheduler = StageScheduler()
    with scheduler:
        assert scheduler.yield_turn() is None


def test_a_request_that_failed_is_no_longer_counted() -> None:
    scheduler = StageScheduler()
    with pytest.raises(RuntimeError), scheduler:
        raise RuntimeError
    with scheduler:
        assert scheduler.yield_turn() is None


async def test_a_disconnect_while_yielding_raises_client_gone() -> None:
    scheduler, exchange = StageScheduler(), RecordingConnection().make_exchange()
    with scheduler, scheduler:
        turn = scheduler.yield_turn()
    assert turn is not None
    asyncio.get_running_loop().call_soon(exchange.disconnect)
    with pytest.raises(ClientGone), exchange:
        await turn
