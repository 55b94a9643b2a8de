"""Requests that are under way together, from stage to stage; and those that are alone."""

import asyncio

import pytest

from antiphon.transport.http.channel import ClientGone
from antiphon.transport.streaming.stage_scheduler import Company
from tests.transport.server.recording_transport import Carrier

pytestmark = pytest.mark.anyio


async def test_those_who_come_together_are_all_through_a_stage_before_one_begins_the_next() -> None:
    company, seen = Company(), list[str]()

    async def work(name: str) -> None:
        with company:
            for stage in ("one", "two", "three"):
                if (others := company.others()) is not None:
                    await others
                seen.append(f"{name} {stage}")

    with company:  # somebody who waits for an answer
        await asyncio.gather(*map(work, "abc"))
    assert seen == ["a one", "b one", "c one", "a two", "b two", "c two", "a three", "b three", "c three"]


def test_who_is_alone_has_nobody_to_wait_for() -> None:
    company = Company()
    with company:
        assert company.others() is None


def test_who_has_left_however_that_came_is_no_company() -> None:
    company = Company()
    with pytest.raises(RuntimeError), company:
        raise RuntimeError
    with company:
        assert company.others() is None


async def test_a_client_that_leaves_while_others_come_is_not_worked_for_any_more() -> None:
    company, cycle = Company(), Carrier().cycle()
    with company, company:
        others = company.others()
    assert others is not None
    asyncio.get_running_loop().call_soon(cycle.leave)
    with pytest.raises(ClientGone), cycle:
        await others
