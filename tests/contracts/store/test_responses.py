"""What every store keeps of responses, from their beginning to their end."""

import asyncio

import pytest
from msgspec.structs import replace

from antiphon.errors import Busy, KeyReused, UnknownConversation, UnknownPrevious
from antiphon.ids import new_id
from antiphon.stores.base import Lost, NewResponse, Store, StoredResponse
from tests.stores.rows import TAPE, TENANT, TTL, Clock, end, kept, key, owner, response, running, talk, whole

pytestmark = pytest.mark.anyio

STRANGE = ["", "resp_1", "resp_\0", "resp_\ud800", "respé", "resp_' OR 1=1 --", "r" * 10_000]


def row(new: NewResponse, **changes: object) -> StoredResponse:
    """As it is read, just begun."""
    begun = StoredResponse(
        id=new.id,
        status=new.status,
        background=new.background,
        created=new.created,
        deadline=new.deadline,
        previous=new.previous,
        conversation=new.conversation,
        request=new.request,
        response=new.response,
        tape=None,
        fence=1,
        attempts=1,
    )
    return replace(begun, **changes)


async def test_a_response_is_there_as_it_was_begun(store: Store, clock: Clock) -> None:
    first = await kept(store, clock)
    new = response(clock, background=True, previous=first)
    assert await store.begin(TENANT, new, owner(clock)) is None
    assert await store.get(TENANT, new.id) == row(new)


async def test_a_response_is_there_as_it_ended(store: Store, clock: Clock) -> None:
    new = await running(store, clock)
    ended = end(clock, new)
    await store.finish(TENANT, ended)
    assert await store.get(TENANT, new.id) == row(new, status="completed", response=ended.response, tape=TAPE)


async def test_a_response_that_was_never_begun_can_be_written_at_its_end(store: Store, clock: Clock) -> None:
    new = response(clock)
    ended = whole(clock, new)
    await store.finish(TENANT, ended)
    expected = row(new, status="completed", response=ended.response, tape=TAPE, fence=0)
    assert await store.get(TENANT, new.id) == expected
    await store.finish(TENANT, ended)
    assert await store.get(TENANT, new.id) == expected
    assert await store.tenants() == {TENANT: (1, len(new.request) + len(ended.response) + len(TAPE))}


async def test_a_queued_response_starts(store: Store, clock: Clock) -> None:
    new = await running(store, clock, background=True)
    await store.start(TENANT, new.id, 1)
    assert await store.get(TENANT, new.id) == row(new, status="in_progress")


async def test_the_second_end_changes_nothing(store: Store, clock: Clock) -> None:
    new = await running(store, clock)
    await store.finish(TENANT, end(clock, new, text="one"))
    first, totals = await store.get(TENANT, new.id), await store.tenants()
    await store.finish(TENANT, replace(end(clock, new, text="another"), status="failed"))
    assert await store.get(TENANT, new.id) == first
    assert await store.tenants() == totals


@pytest.mark.parametrize("begun", [True, False])
async def test_an_end_that_was_told_instead_of_another_stays(store: Store, clock: Clock, begun: bool) -> None:
    new = await running(store, clock) if begun else response(clock)
    first = end(clock, new, text="one") if begun else whole(clock, new)
    await store.finish(TENANT, first)
    before = await store.tenants()
    told = replace(first, status="failed", response=b"another, and longer", instead=True)
    for _ in range(2):
        await store.finish(TENANT, told)
    found = await store.get(TENANT, new.id)
    assert found is not None
    assert (found.status, found.response) == ("failed", told.response)
    await store.finish(TENANT, first)  # it was on its way for long
    assert await store.get(TENANT, new.id) == found
    grown = len(told.response) - len(first.response)
    assert await store.tenants() == {name: (rows, size + grown) for name, (rows, size) in before.items()}


@pytest.mark.parametrize("word", ["start", "finish", "append", "release"])
async def test_an_owner_that_was_replaced_is_lost(store: Store, clock: Clock, word: str) -> None:
    new = await running(store, clock, background=True)
    taken = await store.take(TENANT, new.id, owner(clock, "another"))
    assert taken == row(new, fence=2, attempts=2)
    with pytest.raises(Lost):
        await say(store, clock, word, new, 1)
    assert await store.get(TENANT, new.id) == taken
    assert await store.read(TENANT, new.id, -1) == []
    await say(store, clock, word, new, 2)


@pytest.mark.parametrize("word", ["start", "append", "release"])
async def test_after_the_end_nobody_has_a_say(store: Store, clock: Clock, word: str) -> None:
    new = await running(store, clock, background=True)
    await store.finish(TENANT, end(clock, new))
    with pytest.raises(Lost):
        await say(store, clock, word, new, 1)


@pytest.mark.parametrize("word", ["start", "finish", "append", "release"])
async def test_the_owner_of_a_deleted_response_is_lost(store: Store, clock: Clock, word: str) -> None:
    new = await running(store, clock, background=True)
    assert await store.delete(TENANT, new.id)
    with pytest.raises(Lost):
        await say(store, clock, word, new, 1)
    assert await store.get(TENANT, new.id) is None
    assert await store.tenants() == {}


async def say(store: Store, clock: Clock, word: str, new: NewResponse, fence: int) -> None:
    match word:
        case "start":
            await store.start(TENANT, new.id, fence)
        case "finish":
            await store.finish(TENANT, end(clock, new, fence))
        case "append":
            await store.append(TENANT, new.id, fence, 0, b"batch")
        case "release":
            await store.release(TENANT, new.id, fence)


async def test_an_end_drops_the_live_log(store: Store, clock: Clock) -> None:
    new = await running(store, clock)
    await store.append(TENANT, new.id, 1, 0, b"batch")
    await store.finish(TENANT, end(clock, new))
    assert await store.read(TENANT, new.id, -1) == []


async def test_the_live_log_is_read_from_any_batch_on(store: Store, clock: Clock) -> None:
    new = await running(store, clock)
    for number in range(12):
        await store.append(TENANT, new.id, 1, number, b"%d" % number)
        await store.append(TENANT, new.id, 1, number, b"again")
    for after in range(-1, 13):
        assert await store.read(TENANT, new.id, after) == [b"%d" % number for number in range(after + 1, 12)]


@pytest.mark.shows("B.10")
async def test_what_cannot_be_seen_cannot_be_continued(store: Store, clock: Clock) -> None:
    deleted, foreign, expired = await kept(store, clock), await kept(store, clock, tenant="other"), response(clock)
    await store.delete(TENANT, deleted)
    await store.finish(TENANT, whole(clock, expired, clock() + 1))
    clock.now += 1
    totals = await store.tenants()
    for previous in (deleted, foreign, expired.id, new_id("resp"), *STRANGE):
        new = response(clock, previous=previous)
        with pytest.raises(UnknownPrevious) as one:
            await store.begin(TENANT, new, owner(clock), key(clock))
        with pytest.raises(UnknownPrevious) as other:
            await store.finish(TENANT, whole(clock, new))
        assert one.value.param == other.value.param == "previous_response_id"
        assert await store.get(TENANT, new.id) is None
    assert await store.tenants() == totals
    assert await store.begin(TENANT, response(clock), owner(clock), key(clock)) is None, "the key was not taken"


async def test_a_conversation_that_is_not_there_is_refused(store: Store, clock: Clock) -> None:
    deleted, foreign = await talk(store, clock), await talk(store, clock, tenant="other")
    await store.delete_conversation(TENANT, deleted)
    for conversation in (deleted, foreign, new_id("conv"), *STRANGE):
        with pytest.raises(UnknownConversation):
            await store.begin(TENANT, response(clock, conversation=conversation), owner(clock))


async def test_strange_ids_find_nothing(store: Store, clock: Clock) -> None:
    await running(store, clock)
    for name in STRANGE:
        assert await store.get(TENANT, name) is None
        assert await store.chain(TENANT, name) == []
        assert await store.read(TENANT, name, -1) == []
        assert await store.take(TENANT, name, owner(clock)) is None
        assert not await store.delete(TENANT, name)


async def test_a_tenant_sees_nothing_of_another(store: Store, clock: Clock) -> None:
    new = await running(store, clock, background=True)
    await store.append(TENANT, new.id, 1, 0, b"batch")
    before = await store.get(TENANT, new.id)
    assert await store.get("other", new.id) is None
    assert await store.chain("other", new.id) == []
    assert await store.read("other", new.id, -1) == []
    assert await store.take("other", new.id, owner(clock, "thief")) is None
    assert not await store.delete("other", new.id)
    for word in (
        store.start("other", new.id, 1),
        store.release("other", new.id, 1),
        store.append("other", new.id, 1, 1, b"batch"),
        store.finish("other", end(clock, new)),
    ):
        with pytest.raises(Lost):
            await word
    assert await store.get(TENANT, new.id) == before
    assert await store.read(TENANT, new.id, -1) == [b"batch"]


@pytest.mark.shows("B.12", "B.13")
async def test_a_key_is_the_first_response_s(store: Store, clock: Clock) -> None:
    first = response(clock)
    assert await store.keyed(TENANT, key(clock)) is None
    assert await store.begin(TENANT, first, owner(clock), key(clock)) is None
    totals = await store.tenants()
    second = response(clock)
    assert await store.begin(TENANT, second, owner(clock), key(clock)) == first.id
    assert await store.keyed(TENANT, key(clock)) == first.id
    assert await store.get(TENANT, second.id) is None
    for attempt in (
        store.begin(TENANT, second, owner(clock), key(clock, digest=b"another")),
        store.keyed(TENANT, key(clock, digest=b"another")),
    ):
        with pytest.raises(KeyReused):
            await attempt
    assert await store.tenants() == totals
    assert await store.begin("other", response(clock), owner(clock), key(clock)) is None
    await store.finish(TENANT, end(clock, first))
    assert await store.begin(TENANT, second, owner(clock), key(clock)) == first.id


async def test_a_key_is_free_again_when_it_expires_or_its_response_is_gone(store: Store, clock: Clock) -> None:
    first, second, third = response(clock), response(clock), response(clock)
    await store.begin(TENANT, first, owner(clock), key(clock))
    clock.now += 100
    assert await store.begin(TENANT, second, owner(clock), key(clock, digest=b"another")) is None
    await store.delete(TENANT, second.id)
    assert await store.keyed(TENANT, key(clock)) is None
    assert await store.begin(TENANT, third, owner(clock), key(clock)) is None
    assert await store.get(TENANT, first.id) is not None


@pytest.mark.parametrize("background", [False, True])
async def test_a_key_is_free_again_when_the_client_left_before_the_end(
    store: Store, clock: Clock, background: bool
) -> None:
    first, second = response(clock, background=background), response(clock, background=background)
    await store.begin(TENANT, first, owner(clock), key(clock))
    await store.finish(TENANT, replace(end(clock, first), status="cancelled"))
    held = first.id if background else None  # in the background somebody has asked for that
    assert await store.keyed(TENANT, key(clock)) == held
    assert await store.begin(TENANT, second, owner(clock), key(clock)) == held


async def test_of_many_at_once_one_gets_the_key(store: Store, another: Store, clock: Clock) -> None:
    news = [response(clock) for _ in range(20)]
    begins = [(store, another)[n % 2].begin(TENANT, new, owner(clock), key(clock)) for n, new in enumerate(news)]
    given = await asyncio.gather(*begins)
    winner = news[given.index(None)].id
    assert sorted(map(str, given)) == sorted(["None", *[winner] * 19])
    assert [new.id for new in news if await store.get(TENANT, new.id)] == [winner]


@pytest.mark.shows("B.6")
async def test_there_is_room_for_so_many_background_responses(store: Store, another: Store, clock: Clock) -> None:
    news = [response(clock, background=True) for _ in range(12)]
    await running(store, clock)  # a foreground one does not count
    begins = [(store, another)[n % 2].begin(TENANT, new, owner(clock), room=4) for n, new in enumerate(news)]
    outcomes = await asyncio.gather(*begins, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes if outcome is not None] == [Busy] * 8
    assert all(outcome.retry_after for outcome in outcomes if isinstance(outcome, Busy))
    begun = news[outcomes.index(None)]
    await store.finish(TENANT, end(clock, begun))
    assert await store.begin("other", response(clock, background=True), owner(clock), room=1) is None
    assert await store.begin(TENANT, response(clock, background=True), owner(clock), room=4) is None


@pytest.mark.shows("B1.3")
async def test_what_has_expired_cannot_be_seen(store: Store, clock: Clock) -> None:
    new = await running(store, clock)
    clock.now += TTL
    assert await store.get(TENANT, new.id), "time does not count while it runs"
    await store.finish(TENANT, end(clock, new))
    clock.now += TTL - 1
    assert await store.get(TENANT, new.id)
    clock.now += 1
    assert await store.get(TENANT, new.id) is None
    assert await store.chain(TENANT, new.id) == []
    assert not await store.delete(TENANT, new.id)


async def test_what_never_expires_is_there_for_ever(store: Store, clock: Clock) -> None:
    new = response(clock)
    await store.finish(TENANT, whole(clock, new, None))
    clock.now = 1e12
    assert await store.get(TENANT, new.id)


async def test_an_operation_that_nobody_waits_for_any_more_is_carried_out(store: Store, clock: Clock) -> None:
    new = response(clock)
    task = asyncio.ensure_future(store.finish(TENANT, whole(clock, new)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(1000):
        if await store.get(TENANT, new.id):
            return
    pytest.fail("it was not")


async def test_a_refused_operation_leaves_those_beside_it_alone(store: Store, clock: Clock) -> None:
    good = [response(clock) for _ in range(20)]
    bad = [response(clock, previous=new_id("resp")) for _ in range(20)]
    mixed = [new for pair in zip(good, bad, strict=True) for new in pair]
    outcomes = await asyncio.gather(*(store.finish(TENANT, whole(clock, new)) for new in mixed), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), UnknownPrevious] * 20
    assert all([await store.get(TENANT, new.id) for new in good])
    assert (await store.tenants())[TENANT][0] == 20


@pytest.mark.parametrize(("count", "length"), [(1, 50), (2, 50), (37, 50), (5, 100_000)])
async def test_responses_that_come_at_once_are_kept_each_as_its_own(
    store: Store, clock: Clock, count: int, length: int
) -> None:
    tenants = [f"tenant{number % 2}" for number in range(count)]
    ends = [whole(clock, response(clock, text=str(number) * length)) for number in range(count)]
    begun = response(clock)
    await asyncio.gather(
        *(store.finish(tenant, ended) for tenant, ended in zip(tenants, ends, strict=True)),
        store.begin(TENANT, begun, owner(clock)),
    )
    sizes: dict[str, tuple[int, int]] = {TENANT: (1, len(begun.request) + len(begun.response))}
    for tenant, ended in zip(tenants, ends, strict=True):
        assert ended.new is not None
        expected = row(ended.new, status="completed", response=ended.response, tape=TAPE, fence=0)
        assert await store.get(tenant, ended.id) == expected
        entries, size = sizes.get(tenant, (0, 0))
        sizes[tenant] = entries + 1, size + len(ended.new.request) + len(ended.response) + len(TAPE)
    assert await store.get(TENANT, begun.id) == row(begun)
    assert await store.tenants() == sizes


async def test_one_of_many_that_is_there_already_is_written_once_and_refuses_no_other(
    store: Store, clock: Clock
) -> None:
    ends = [whole(clock, response(clock)) for _ in range(8)]
    await store.finish(TENANT, ends[3])
    taken = await running(store, clock)
    lost = whole(clock, taken)
    told = await asyncio.gather(
        *(store.finish(TENANT, ended) for ended in (*ends, ends[5], lost)), return_exceptions=True
    )
    assert told[:-1] == [None] * 9
    assert isinstance(told[-1], Lost), "it was begun, and has not ended"
    assert [await store.get(TENANT, ended.id) is not None for ended in ends] == [True] * 8
    size = sum(len(ended.new.request) + len(ended.response) + len(TAPE) for ended in ends if ended.new is not None)
    assert await store.tenants() == {TENANT: (9, size + len(taken.request) + len(taken.response))}
