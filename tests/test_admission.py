"""Admission control: slots, the bounded queue, and fair turns between tenants and ranks.

Covers `errors.py`.
"""

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
    """Let all ready tasks run."""
    for _ in range(5):
        await asyncio.sleep(0)


def start_task(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(coroutine)


async def wait_for_tasks(*tasks: asyncio.Task[None]) -> None:
    async with asyncio.timeout(30):
        await asyncio.wait(tasks)


async def test_a_free_slot_is_taken_at_once() -> None:
    admission = Admission(slots=2, queue=0)
    first, second = admission.enter(), admission.enter()
    async with asyncio.timeout(30):
        await first.wait_turn()
        await second.wait_turn()
        await second.wait_turn()
    assert (admission.running, admission.waiting) == (2, 0)


async def test_the_wait_of_each_ticket_is_reported_at_its_turn() -> None:
    waits: list[float] = []
    admission = Admission(slots=1, queue=2, on_admitted=waits.append)
    first, second, third = admission.enter(), admission.enter(), admission.enter()
    assert waits == [0.0]
    third.leave()
    first.leave()
    assert len(waits) == 2
    assert waits[1] > 0
    second.leave()
    assert len(waits) == 2


@pytest.mark.shows("C.8", "H2.6")
async def test_a_full_queue_raises_busy_with_retry_after() -> None:
    admission = Admission(slots=1, queue=1)
    admission.enter(), admission.enter()
    with pytest.raises(Busy) as refused:
        admission.enter()
    assert refused.value.status == 429
    assert refused.value.retry_after is not None
    assert 1 <= refused.value.retry_after <= 60
    assert (admission.running, admission.waiting) == (1, 1)


async def test_without_a_queue_a_second_entry_is_busy() -> None:
    admission = Admission(slots=1, queue=0)
    ticket = admission.enter()
    with pytest.raises(Busy):
        admission.enter()
    ticket.leave()
    admission.enter()


async def test_the_longest_waiting_ticket_is_next() -> None:
    admission = Admission(slots=1, queue=3)
    running = admission.enter()
    tickets = [admission.enter() for _ in range(3)]
    order: list[int] = []

    async def work(number: int, ticket: Ticket) -> None:
        with ticket:
            await ticket.wait_turn()
            order.append(number)

    # The tasks start in another order than their tickets entered: the order of entering counts.
    tasks = [start_task(work(number, tickets[number])) for number in (2, 0, 1)]
    await settle()
    assert order == []
    running.leave()
    await wait_for_tasks(*tasks)
    assert order == [0, 1, 2]
    assert (admission.running, admission.waiting) == (0, 0)


async def test_a_turn_before_the_wait_is_not_lost() -> None:
    admission = Admission(slots=1, queue=1)
    running, waiting = admission.enter(), admission.enter()
    running.leave()
    async with asyncio.timeout(30):
        await waiting.wait_turn()
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


async def test_a_ticket_cannot_wait_for_a_turn_after_leaving() -> None:
    ticket = Admission(slots=1, queue=0).enter()
    ticket.leave()
    with pytest.raises(RuntimeError, match="left"):
        await ticket.wait_turn()


async def test_a_cancelled_waiter_leaves_the_queue() -> None:
    admission = Admission(slots=1, queue=1)
    running, waiting = admission.enter(), admission.enter()
    task = start_task(waiting.wait_turn())
    await settle()
    task.cancel()
    await wait_for_tasks(task)
    assert task.cancelled()
    assert (admission.running, admission.waiting) == (1, 0)
    running.leave()
    assert admission.running == 0


async def test_a_waiter_cancelled_at_its_turn_passes_the_slot_on() -> None:
    admission = Admission(slots=1, queue=2)
    running, second, third = admission.enter(), admission.enter(), admission.enter()
    task = start_task(second.wait_turn())
    await settle()
    running.leave()  # it is the turn of the second ticket, whose task has not run yet
    task.cancel()
    await wait_for_tasks(task)
    async with asyncio.timeout(30):
        await third.wait_turn()
    assert (admission.running, admission.waiting) == (1, 0)


async def test_leaving_a_ticket_cancels_the_wait_for_its_turn() -> None:
    admission = Admission(slots=1, queue=1)
    admission.enter()
    waiting = admission.enter()
    task = start_task(waiting.wait_turn())
    await settle()
    waiting.leave()
    await wait_for_tasks(task)
    assert task.cancelled()
    assert (admission.running, admission.waiting) == (1, 0)


async def test_an_exception_inside_frees_the_slot() -> None:
    admission = Admission(slots=1, queue=0)
    with pytest.raises(ValueError, match="boom"), admission.enter():
        raise ValueError("boom")
    assert admission.running == 0


async def test_retry_after_grows_with_run_times_and_queue_length(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("antiphon.admission.monotonic", lambda: now)

    def get_retry_after(admission: Admission) -> float:
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
    after_long_stays = get_retry_after(admission)
    assert 15 < after_long_stays <= 20.1
    assert get_retry_after(admission) == after_long_stays
    crowded = Admission(slots=1, queue=500)
    for _ in range(501):
        crowded.enter()
    assert get_retry_after(crowded) == 60


async def test_a_later_entry_is_never_busy_and_waits_its_turn() -> None:
    admission = Admission(slots=1, queue=1)
    running, before, later = admission.enter(), admission.enter(), admission.enter_later()
    waiting = start_task(later.wait_turn())
    await settle()
    after = [admission.enter_later() for _ in range(3)]
    tasks = [start_task(ticket.wait_turn()) for ticket in after]
    await settle()
    assert (admission.running, admission.waiting) == (1, 5)
    running.leave()
    before.leave()
    await wait_for_tasks(waiting)
    assert not any(task.done() for task in tasks)
    for ticket in (later, *after):
        ticket.leave()
    await wait_for_tasks(*tasks)
    assert (admission.running, admission.waiting) == (0, 0)


async def test_a_later_entry_takes_no_slot_before_it_waits() -> None:
    admission = Admission(slots=1, queue=0)
    later = admission.enter_later()
    other = admission.enter()
    assert (admission.running, admission.waiting) == (1, 0)
    other.leave()
    later.leave()
    later.leave()
    assert (admission.running, admission.waiting) == (0, 0)
    with pytest.raises(RuntimeError, match="left"):
        await later.wait_turn()


async def test_a_later_entry_does_not_use_up_the_queue() -> None:
    admission = Admission(slots=1, queue=1)
    admission.enter()
    task = start_task(admission.enter_later().wait_turn())
    await settle()
    admission.enter()
    with pytest.raises(Busy):
        admission.enter()
    assert admission.waiting == 2
    task.cancel()
    await wait_for_tasks(task)
    with pytest.raises(Busy):
        admission.enter()
    assert admission.waiting == 1


@given(st.lists(st.tuples(st.sampled_from(["enter", "leave", "again"]), st.integers(0, 50)), max_size=200))
@pytest.mark.shows("C.8")
def test_slots_and_queue_stay_within_their_limits(steps: list[tuple[str, int]]) -> None:
    admission = Admission(slots=3, queue=4)
    active: list[Ticket] = []
    released: list[Ticket] = []
    for step, which in steps:
        if step == "enter":
            if len(active) < 7:
                active.append(admission.enter())
            else:
                with pytest.raises(Busy):
                    admission.enter()
        elif step == "leave" and active:
            released.append(active.pop(which % len(active)))
            released[-1].leave()
        elif step == "again" and released:
            released[which % len(released)].leave()
        assert admission.running == min(len(active), 3)
        assert admission.waiting == max(len(active) - 3, 0)


@pytest.mark.shows("C.8")
async def test_turns_rotate_between_waiting_tenants() -> None:
    admission = Admission(slots=1, queue=20)
    running = admission.enter("a")
    order: list[str] = []
    waiting = [(name, admission.enter(name[0])) for name in ("a1", "a2", "a3", "a4", "b1", "c1", "b2")]

    async def work(name: str, ticket: Ticket) -> None:
        with ticket:
            await ticket.wait_turn()
            order.append(name)

    tasks = [start_task(work(*one)) for one in waiting]
    await settle()
    running.leave()
    await wait_for_tasks(*tasks)
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


async def test_a_tenant_that_fills_the_queue_does_not_block_others() -> None:
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


async def test_each_tenant_gets_a_share_of_a_full_queue() -> None:
    admission = Admission(slots=1, queue=12)
    for _ in range(13):
        admission.enter("loud")

    def try_enter(name: str) -> bool:
        return admission.find_refusal(name) is None and admission.enter(name).entered

    assert [sum([try_enter(name) for _ in range(20)]) for name in ("second", "third")] == [6, 4]
    with pytest.raises(Busy):
        admission.enter("loud")


async def test_without_a_queue_a_new_tenant_is_busy_too() -> None:
    admission = Admission(slots=1, queue=0)
    admission.enter("a")
    with pytest.raises(Busy):
        admission.enter("b")


async def test_added_slots_are_assigned_and_removed_slots_interrupt_no_run() -> None:
    admission = Admission(slots=1, queue=5)
    tickets = [admission.enter() for _ in range(4)]
    assert (admission.running, admission.waiting) == (1, 3)
    admission.resize(3)
    assert (admission.running, admission.waiting) == (3, 1)
    async with asyncio.timeout(30):
        await tickets[2].wait_turn()
    admission.resize(1)
    assert (admission.running, admission.waiting) == (3, 1)
    tickets[0].leave()
    tickets[1].leave()
    assert (admission.running, admission.waiting) == (1, 1), "a waiting ticket is admitted only below the new limit"
    tickets[2].leave()
    assert (admission.running, admission.waiting) == (1, 0)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c", "d"]), st.booleans()), max_size=60), st.integers(1, 3))
def test_no_other_tenant_has_two_turns_between_two_turns_of_a_waiting_tenant(
    entries: list[tuple[str, bool]], slots: int
) -> None:
    admission = Admission(slots, queue=100)
    running = [admission.enter("first") for _ in range(slots)]
    waiting = {admission.enter(tenant): tenant for tenant, _ in entries}
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


async def run_turns(names: str) -> list[str]:
    """Return the order in which the named tickets have their turns while one slot is freed after the other."""
    admission = Admission(slots=1, queue=1000)
    order: list[str] = []
    runs = [admission.enter("first")]

    async def take(name: str) -> None:
        rank, _, tenant = name.partition(":")
        with admission.enter(tenant, int(rank)) as ticket:
            await ticket.wait_turn()
            order.append(name)

    tasks = [start_task(take(name)) for name in names.split()]
    await settle()
    runs[0].leave()
    await wait_for_tasks(*tasks)
    return order


@pytest.mark.shows("A.43")
async def test_turns_follow_the_rank() -> None:
    assert await run_turns("2:a 1:a 0:a 1:a 0:a") == ["0:a", "0:a", "1:a", "1:a", "2:a"]


@pytest.mark.shows("A.43")
async def test_turns_rotate_between_the_tenants_of_one_rank() -> None:
    assert await run_turns("0:a 0:a 0:a 0:b 1:c 1:c 1:d") == ["0:a", "0:b", "0:a", "0:a", "1:c", "1:d", "1:c"]


@pytest.mark.shows("A.43")
async def test_lower_ranks_are_not_starved_by_a_higher_rank() -> None:
    order = await run_turns(" ".join(["1:u", "2:f", "1:u", "2:f", *["0:p"] * 40]))
    positions = [index for index, name in enumerate(order) if name != "0:p"]
    assert [order[index] for index in positions] == ["1:u", "2:f", "1:u", "2:f"]
    assert positions[0] == 8
    assert positions[-1] < 20


async def test_a_full_queue_rejects_a_tenant_that_already_waits_in_another_rank() -> None:
    admission = Admission(slots=1, queue=1)
    admission.enter("a"), admission.enter("a", 0)
    with pytest.raises(Busy):
        admission.enter("a", 2)
    admission.enter("b", 2)


async def test_a_waiting_ticket_of_any_rank_can_leave() -> None:
    admission = Admission(slots=1, queue=9)
    tickets = [admission.enter("a", rank) for rank in (1, 0, 1, 2, 0)]
    for ticket in tickets[1:]:
        ticket.leave()
    assert (admission.running, admission.waiting) == (1, 0)
    tickets[0].leave()
    assert admission.running == 0
