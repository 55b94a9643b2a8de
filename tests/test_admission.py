import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.admission import Admission, Ticket
from antiphon.errors import Busy

pytestmark = pytest.mark.anyio


async def settle() -> None:
    """Let everything that can run now run."""
    for _ in range(5):
        await asyncio.sleep(0)


def start(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work)


async def finished(*tasks: asyncio.Task[None]) -> None:
    async with asyncio.timeout(30):
        await asyncio.wait(tasks)


async def test_a_free_slot_is_taken_at_once() -> None:
    admission = Admission(slots=2, queue=0)
    first, second = admission.enter(), admission.enter()
    async with asyncio.timeout(30):
        await first.ready()
        await second.ready()
        await second.ready()
    assert (admission.running, admission.waiting) == (2, 0)


async def test_how_long_each_waited_is_told_when_its_turn_has_come() -> None:
    told: list[float] = []
    admission = Admission(slots=1, queue=2, waited=told.append)
    first, second, third = admission.enter(), admission.enter(), admission.enter()
    assert told == [0.0]
    third.leave()
    first.leave()
    assert len(told) == 2
    assert told[1] > 0
    second.leave()
    assert len(told) == 2


@pytest.mark.shows("C.8", "H2.6")
async def test_a_full_queue_is_busy_and_says_when_to_come_back() -> None:
    admission = Admission(slots=1, queue=1)
    admission.enter(), admission.enter()
    with pytest.raises(Busy) as refused:
        admission.enter()
    assert refused.value.status == 429
    assert refused.value.retry_after is not None
    assert 1 <= refused.value.retry_after <= 60
    assert (admission.running, admission.waiting) == (1, 1)


async def test_without_a_queue_nobody_waits() -> None:
    admission = Admission(slots=1, queue=0)
    ticket = admission.enter()
    with pytest.raises(Busy):
        admission.enter()
    ticket.leave()
    admission.enter()


async def test_who_waited_longest_is_next() -> None:
    admission = Admission(slots=1, queue=3)
    running = admission.enter()
    tickets = [admission.enter() for _ in range(3)]
    order: list[int] = []

    async def work(number: int, ticket: Ticket) -> None:
        with ticket:
            await ticket.ready()
            order.append(number)

    # Started in another order than they came: it is the entering that counts.
    tasks = [start(work(number, tickets[number])) for number in (2, 0, 1)]
    await settle()
    assert order == []
    running.leave()
    await finished(*tasks)
    assert order == [0, 1, 2]
    assert (admission.running, admission.waiting) == (0, 0)


async def test_a_turn_that_came_before_it_was_waited_for_is_not_lost() -> None:
    admission = Admission(slots=1, queue=1)
    running, waiting = admission.enter(), admission.enter()
    running.leave()
    async with asyncio.timeout(30):
        await waiting.ready()
    assert (admission.running, admission.waiting) == (1, 0)


async def test_leaving_is_idempotent() -> None:
    admission = Admission(slots=1, queue=1)
    running, waiting = admission.enter(), admission.enter()
    waiting.leave()
    waiting.leave()
    assert (admission.running, admission.waiting) == (1, 0)
    running.leave()
    running.leave()
    assert (admission.running, admission.waiting) == (0, 0)


async def test_a_ticket_that_was_left_has_no_turn() -> None:
    ticket = Admission(slots=1, queue=0).enter()
    ticket.leave()
    with pytest.raises(RuntimeError, match="left"):
        await ticket.ready()


async def test_a_cancelled_waiter_leaves_the_queue() -> None:
    admission = Admission(slots=1, queue=1)
    running, waiting = admission.enter(), admission.enter()
    task = start(waiting.ready())
    await settle()
    task.cancel()
    await finished(task)
    assert task.cancelled()
    assert (admission.running, admission.waiting) == (1, 0)
    running.leave()
    assert admission.running == 0


async def test_a_waiter_cancelled_in_the_moment_of_its_turn_hands_the_slot_on() -> None:
    admission = Admission(slots=1, queue=2)
    running, second, third = admission.enter(), admission.enter(), admission.enter()
    task = start(second.ready())
    await settle()
    running.leave()  # the turn of the second has come, but it has not run yet
    task.cancel()
    await finished(task)
    async with asyncio.timeout(30):
        await third.ready()
    assert (admission.running, admission.waiting) == (1, 0)


async def test_leaving_a_ticket_wakes_who_waits_for_its_turn() -> None:
    admission = Admission(slots=1, queue=1)
    admission.enter()
    waiting = admission.enter()
    task = start(waiting.ready())
    await settle()
    waiting.leave()
    await finished(task)
    assert task.cancelled()
    assert (admission.running, admission.waiting) == (1, 0)


async def test_an_exception_inside_frees_the_slot() -> None:
    admission = Admission(slots=1, queue=0)
    with pytest.raises(ValueError, match="boom"), admission.enter():
        raise ValueError("boom")
    assert admission.running == 0


async def test_longer_stays_and_longer_queues_put_callers_off_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("antiphon.admission.monotonic", lambda: now)

    def told(admission: Admission) -> float:
        with pytest.raises(Busy) as refused:
            admission.enter()
        assert refused.value.retry_after is not None
        return refused.value.retry_after

    admission = Admission(slots=1, queue=1)
    for _ in range(30):
        ticket = admission.enter()
        now += 10.0
        ticket.leave()
    admission.enter(), admission.enter()
    after_long_stays = told(admission)
    assert 15 < after_long_stays <= 20.1
    assert told(admission) == after_long_stays
    crowded = Admission(slots=1, queue=500)
    for _ in range(501):
        crowded.enter()
    assert told(crowded) == 60


async def test_who_is_patient_is_never_busy_and_comes_in_its_turn() -> None:
    admission = Admission(slots=1, queue=1)
    running, before, patient = admission.enter(), admission.enter(), admission.patient()
    waiting = start(patient.ready())
    await settle()
    after = [admission.patient() for _ in range(3)]
    tasks = [start(ticket.ready()) for ticket in after]
    await settle()
    assert (admission.running, admission.waiting) == (1, 5)
    running.leave()
    before.leave()
    await finished(waiting)
    assert not any(task.done() for task in tasks)
    for ticket in (patient, *after):
        ticket.leave()
    await finished(*tasks)
    assert (admission.running, admission.waiting) == (0, 0)


async def test_who_is_patient_takes_no_place_before_it_waits_for_one() -> None:
    admission = Admission(slots=1, queue=0)
    patient = admission.patient()
    other = admission.enter()
    assert (admission.running, admission.waiting) == (1, 0)
    other.leave()
    patient.leave()
    patient.leave()
    assert (admission.running, admission.waiting) == (0, 0)
    with pytest.raises(RuntimeError, match="left"):
        await patient.ready()


async def test_who_is_patient_takes_nobodys_room_to_wait() -> None:
    admission = Admission(slots=1, queue=1)
    admission.enter()
    task = start(admission.patient().ready())
    await settle()
    admission.enter()
    with pytest.raises(Busy):
        admission.enter()
    assert admission.waiting == 2
    task.cancel()
    await finished(task)
    with pytest.raises(Busy):
        admission.enter()
    assert admission.waiting == 1


@given(st.lists(st.tuples(st.sampled_from(["enter", "leave", "again"]), st.integers(0, 50)), max_size=200))
@pytest.mark.shows("C.8")
def test_whatever_happens_slots_and_queue_hold(steps: list[tuple[str, int]]) -> None:
    admission = Admission(slots=3, queue=4)
    held: list[Ticket] = []
    gone: list[Ticket] = []
    for step, which in steps:
        if step == "enter":
            if len(held) < 7:
                held.append(admission.enter())
            else:
                with pytest.raises(Busy):
                    admission.enter()
        elif step == "leave" and held:
            gone.append(held.pop(which % len(held)))
            gone[-1].leave()
        elif step == "again" and gone:
            gone[which % len(gone)].leave()
        assert admission.running == min(len(held), 3)
        assert admission.waiting == max(len(held) - 3, 0)


@pytest.mark.shows("C.8")
async def test_turns_go_round_the_tenants_that_wait() -> None:
    admission = Admission(slots=1, queue=20)
    running = admission.enter("a")
    order: list[str] = []
    waiting = [(name, admission.enter(name[0])) for name in ("a1", "a2", "a3", "a4", "b1", "c1", "b2")]

    async def work(name: str, ticket: Ticket) -> None:
        with ticket:
            await ticket.ready()
            order.append(name)

    tasks = [start(work(*one)) for one in waiting]
    await settle()
    running.leave()
    await finished(*tasks)
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


async def test_a_tenant_that_fills_the_queue_keeps_nobody_else_from_waiting() -> None:
    admission = Admission(slots=1, queue=2)
    for _ in range(3):
        admission.enter("loud")
    with pytest.raises(Busy):
        admission.enter("loud")
    quiet = admission.enter("quiet")
    with pytest.raises(Busy):
        admission.enter("quiet")
    assert admission.waiting == 3
    quiet.leave()
    admission.enter("quiet")


async def test_everybody_has_a_share_of_a_full_queue() -> None:
    admission = Admission(slots=1, queue=12)
    for _ in range(13):
        admission.enter("loud")

    def let_wait(name: str) -> bool:
        return admission.turns_away(name) is None and admission.enter(name).entered

    assert [sum([let_wait(name) for _ in range(20)]) for name in ("second", "third")] == [6, 4]
    with pytest.raises(Busy):
        admission.enter("loud")


async def test_without_a_queue_not_even_a_new_tenant_waits() -> None:
    admission = Admission(slots=1, queue=0)
    admission.enter("a")
    with pytest.raises(Busy):
        admission.enter("b")


async def test_slots_that_come_are_handed_out_and_those_that_go_cut_nobody_off() -> None:
    admission = Admission(slots=1, queue=5)
    tickets = [admission.enter() for _ in range(4)]
    assert (admission.running, admission.waiting) == (1, 3)
    admission.resize(3)
    assert (admission.running, admission.waiting) == (3, 1)
    async with asyncio.timeout(30):
        await tickets[2].ready()
    admission.resize(1)
    assert (admission.running, admission.waiting) == (3, 1)
    tickets[0].leave()
    tickets[1].leave()
    assert (admission.running, admission.waiting) == (1, 1), "who waits comes in when there is room under the new bound"
    tickets[2].leave()
    assert (admission.running, admission.waiting) == (1, 0)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c", "d"]), st.booleans()), max_size=60), st.integers(1, 3))
def test_nobody_waits_behind_more_than_one_of_each_other_tenant(asked: list[tuple[str, bool]], slots: int) -> None:
    """Between two turns of a tenant that waits, no other has had two."""
    admission = Admission(slots, queue=100)
    running = [admission.enter("first") for _ in range(slots)]
    waiting = {admission.enter(tenant): tenant for tenant, _ in asked}
    turns: list[str] = []
    while waiting:
        running.pop(0).leave()
        admitted = [ticket for ticket in waiting if ticket.running]
        assert len(admitted) == 1
        turns.append(waiting.pop(admitted[0]))
        running.append(admitted[0])
    for number, tenant in enumerate(turns):
        since = max([at for at in range(number) if turns[at] == tenant], default=-1)
        between = turns[since + 1 : number]
        assert all(between.count(other) <= 1 for other in between), turns


async def turns(names: str) -> list[str]:
    """In which order they have their turns, one slot after the other being freed."""
    admission = Admission(slots=1, queue=1000)
    order: list[str] = []
    runs = [admission.enter("first")]

    async def take(name: str) -> None:
        rank, _, tenant = name.partition(":")
        with admission.enter(tenant, int(rank)) as ticket:
            await ticket.ready()
            order.append(name)

    tasks = [start(take(name)) for name in names.split()]
    await settle()
    runs[0].leave()
    await finished(*tasks)
    return order


@pytest.mark.shows("A.43")
async def test_who_is_in_a_hurry_comes_first_and_who_has_time_last() -> None:
    assert await turns("2:a 1:a 0:a 1:a 0:a") == ["0:a", "0:a", "1:a", "1:a", "2:a"]


@pytest.mark.shows("A.43")
async def test_turns_go_round_the_tenants_of_one_rank() -> None:
    assert await turns("0:a 0:a 0:a 0:b 1:c 1:c 1:d") == ["0:a", "0:b", "0:a", "0:a", "1:c", "1:d", "1:c"]


@pytest.mark.shows("A.43")
async def test_nobody_waits_for_ever_however_many_are_in_a_hurry() -> None:
    order = await turns(" ".join(["1:u", "2:f", "1:u", "2:f", *["0:p"] * 40]))
    places = [place for place, name in enumerate(order) if name != "0:p"]
    assert [order[place] for place in places] == ["1:u", "2:f", "1:u", "2:f"]
    assert places[0] == 8
    assert places[-1] < 20


async def test_a_tenant_of_whom_one_waits_in_another_rank_finds_a_full_queue_full() -> None:
    admission = Admission(slots=1, queue=1)
    admission.enter("a"), admission.enter("a", 0)
    with pytest.raises(Busy):
        admission.enter("a", 2)
    admission.enter("b", 2)


async def test_of_those_who_wait_anyone_may_leave_whatever_the_rank() -> None:
    admission = Admission(slots=1, queue=9)
    tickets = [admission.enter("a", rank) for rank in (1, 0, 1, 2, 0)]
    for ticket in tickets[1:]:
        ticket.leave()
    assert (admission.running, admission.waiting) == (1, 0)
    tickets[0].leave()
    assert admission.running == 0
