"""The same request with the n-th operation of the store failing, for every n: a typed error, no lie, nothing left."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import time

import pytest

from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import Unavailable
from antiphon.ids import new_id
from antiphon.protocol.types.events import Completed, Event, Failed, Incomplete
from antiphon.protocol.types.response import Response
from antiphon.service.persistence.response_writer import Keeping
from antiphon.stores.base import RUNNING, Claim, ConversationRow, Key
from tests.service.instrumented_store import Watched
from tests.service.requests import TENANT, Service, accepted, answered, decoded, heard, leave, result, serving

pytestmark = pytest.mark.anyio
KEY = Key("mine", b"digest", time() + 3600.0)
Told = Response | None  # what the client was told last; None: nothing, or an error


def last(events: list[Event]) -> Response:
    """Of a stream: exactly one terminal event, and that is the last."""
    terminal = [event for event in events if isinstance(event, Completed | Failed | Incomplete)]
    assert terminal == events[-1:]
    return terminal[0].response


async def json(made: Service) -> Told:
    return await answered(made.responses)


async def stream(made: Service) -> Told:
    return last(await heard(await accepted(made.responses, stream=True)))


async def chain(made: Service) -> Told:
    first = await answered(made.responses)
    second = await answered(made.responses, previous_response_id=first.id)
    return last(await heard(await accepted(made.responses, stream=True, previous_response_id=second.id)))


async def unstored(made: Service) -> Told:
    first = await answered(made.responses)
    await answered(made.responses, previous_response_id=first.id)
    return await answered(made.responses, previous_response_id=first.id, store=False)


async def conversation(made: Service) -> Told:
    row = ConversationRow(new_id("conv"), 1.0, {})
    await made.store.create_conversation(TENANT, row, [])
    await answered(made.responses, conversation=row.id)
    return last(await heard(await accepted(made.responses, stream=True, conversation=row.id)))


async def reference(made: Service) -> Told:
    first = await answered(made.responses)
    return await answered(made.responses, input=[{"type": "item_reference", "id": first.output[0].id}])


async def keyed(made: Service) -> Told:
    first = await result(await made.responses.create(TENANT, decoded(), KEY))
    again = await result(await made.responses.create(TENANT, decoded(), KEY))
    assert again == first
    return again


async def keyed_stream(made: Service) -> Told:
    first = last(await heard(await made.responses.create(TENANT, decoded(stream=True), KEY)))
    again = last(await heard(await made.responses.create(TENANT, decoded(stream=True), KEY)))
    assert again == first
    return again


async def left(made: Service) -> Told:
    leave(await accepted(made.responses, stream=True))
    return None


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a store need not wait long."""
    monkeypatch.setattr("antiphon.service.runs.remote_run._LOOK", 0.02)
    monkeypatch.setattr("antiphon.service.persistence.response_writer._PATIENCE", 0.02)


Scene = Callable[[Service], Awaitable[Told]]
SCENES: list[Scene] = [
    json, stream, chain, unstored, conversation, reference, keyed, keyed_stream, left,
]  # fmt: skip


@pytest.mark.parametrize(
    ("times", "late"),
    [(1, False), (1, True), (3, False), (3, True)],
    ids=["refused", "unheard", "down", "unheard for long"],
)
@pytest.mark.parametrize("scene", SCENES)
async def test_whichever_operation_fails(scene: Scene, times: int, late: bool) -> None:
    number = 0
    while await failing_at(range(number, number + times), scene, late):
        number += 1
    assert number > 0


async def failing_at(numbers: range, scene: Scene, late: bool) -> bool:
    """Did it get as far as these operations?"""
    watched = Watched()
    await watched.open()
    watched.fail_at, watched.late = numbers, late
    told: Told = None
    engine = FakeEngine(FakeSettings(at_once=1))
    async with serving(engine, watched.as_store(), keeping=Keeping(lease=1.0), queue=0) as made:
        with suppress(Unavailable):
            async with asyncio.timeout(30):
                told = await scene(made)
        reached = len(watched.calls) > numbers.start
        async with asyncio.timeout(30):
            await made.sessions.drained()
        await made.keeper.drain(5.0)
        watched.fail_at = range(0)
        await check(made, watched, told)
    await watched.close()
    return reached


async def check(made: Service, watched: Watched, told: Told) -> None:
    assert made.places() == len(made.keeper._held) == 0
    assert (await answered(made.responses, store=False)).status == "completed"  # the engine's one place is free
    if told is not None and told.store and told.status == "completed":
        assert await made.stored(told.id) == told
    elif told is not None and told.store and (row := await made.store.get(TENANT, told.id)) is not None:
        assert row.status in (told.status, *RUNNING)
    # Whatever still runs, by the store, is nobody's: after its lease somebody ends it.
    watched.ahead = 60.0
    await made.keeper.renew()
    claimed = await made.store.claim(Claim("another", time() + 600.0), 10)
    assert all(one.row.status in RUNNING for one in claimed)
    assert await made.store.claim(Claim("a third", time() + 600.0), 10) == []
    for one in claimed:
        assert await made.store.take(one.tenant, one.row.id, Claim("x", time())) is not None


async def test_a_store_that_is_down_is_a_503_before_anything_is_told() -> None:
    watched = Watched()
    await watched.open()
    watched.fail_all = True
    engine = FakeEngine()
    async with serving(engine, watched.as_store()) as made:
        with pytest.raises(Unavailable) as refused:
            await accepted(made.responses, stream=True)
        assert (refused.value.status, refused.value.retry_after) == (503, 1.0)
        assert not engine.seen
        with pytest.raises(Unavailable):
            await answered(made.responses)
        assert (await answered(made.responses, store=False)).status == "completed"
        assert made.places() == 0
    await watched.close()


async def test_a_stream_whose_end_cannot_be_written_fails_and_is_kept_as_failed_when_the_store_is_back() -> None:
    watched = Watched()
    await watched.open()
    async with serving(FakeEngine(), watched.as_store()) as made:
        stream = await accepted(made.responses, stream=True)
        watched.fail_all = True
        events = await heard(stream)
        response = last(events)
        assert (response.status, response.error and response.error.code) == ("failed", "service_unavailable")
        watched.fail_all = False
        await made.keeper.drain(5.0)
        kept = await made.stored(response.id)
        assert kept == response
        assert kept.output == response.output != []
    await watched.close()


async def test_an_end_that_was_told_is_written_however_long_the_store_is_away(watched: Watched) -> None:
    async with serving(FakeEngine(), watched.as_store(), keeping=Keeping(lease=0.05)) as made:
        stream = await accepted(made.responses, stream=True)
        watched.fail_all = True
        response = last(await heard(stream))
        await watched.until("finish", watched.calls.count("finish") + 5)  # its lease is over by then
        watched.fail_all = False
        await made.keeper.drain(5.0)
        assert await made.stored(response.id) == response


async def test_nobody_takes_over_what_has_an_end_that_is_still_to_be_written(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.service.persistence.response_writer._PATIENCE", 60.0)
    async with serving(FakeEngine(), watched.as_store()) as made:
        stream = await accepted(made.responses, stream=True)
        watched.fail_all = True
        response = last(await heard(stream))
        await watched.until("finish", 3)
        watched.fail_all = False
        async with asyncio.timeout(30):
            while response.id not in made.keeper._held:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0)
        watched.ahead = made.keeper.settings.lease + 1.0
        made.keeper.claim = lambda: Claim(made.keeper.owner, time() + 600.0)  # type: ignore[method-assign]  # by the store's clock
        await made.keeper.renew()
        assert await made.store.claim(Claim("another", time() + 600.0), 10) == []
        await made.keeper.drain(0.01)
        assert not made.keeper._held


async def test_an_answer_that_could_not_be_kept_is_what_its_key_gives_when_the_store_is_back(
    watched: Watched, engine: FakeEngine
) -> None:
    async with serving(engine, watched.as_store()) as made:
        first = await made.responses.create(TENANT, decoded(), KEY)
        (response_id,) = made.running()
        follower = await made.following.replay(TENANT, response_id)
        watched.fail_all = True
        with pytest.raises(Unavailable) as refused:
            await result(first)
        assert refused.value.retry_after
        watched.fail_all = False
        again = await result(await made.responses.create(TENANT, decoded(), KEY))
        assert (again.id, again.status, engine.requests) == (response_id, "completed", 1)
        assert await made.stored(again.id) == again
        told: list[Event] = []
        await follower.drive(told.extend)
        follower.leave()
        assert last(told) == again
