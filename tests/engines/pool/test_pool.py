"""Several engines as one: works move on before the first chunk and never after it, and caches stay warm."""

import asyncio
from collections import Counter
from contextlib import aclosing

import pytest

from antiphon.core.deltas import Text
from antiphon.engines.base import Model
from antiphon.engines.pool.breaker import FAILURES, PAUSE
from antiphon.errors import AntiphonError, BadRequest, Busy, ContextTooLong, EngineFailed, ModelNotFound, Unavailable
from tests.engines.pool.members import Part, ask, first_for, pooled, until, work

pytestmark = pytest.mark.anyio

ILL = [
    EngineFailed("It hung up."),
    Unavailable("It cannot be reached.", retry_after=1.0),
    Busy("It has too much to do.", retry_after=1.0),
    ModelNotFound("It does not have the model any more."),
]
WRONG = [BadRequest("It refuses this."), ContextTooLong("It is too long.", param="input")]


@pytest.mark.parametrize("error", ILL, ids=lambda error: type(error).__name__)
@pytest.mark.shows("C.25")
async def test_a_work_whose_engine_fails_before_the_first_chunk_moves_to_another(error: AntiphonError) -> None:
    async with pooled(Part("a"), Part("b"), Part("c")) as pool:
        asked = work()
        first, others = first_for(pool, asked)
        first.fails(error)
        said = await ask(pool, asked)
        assert said.error is None
        assert said.text == "You said: hi"
        assert (first.requests, sorted(other.requests for other in others)) == (1, [0, 1])


@pytest.mark.parametrize("error", [*ILL, *WRONG], ids=lambda error: type(error).__name__)
@pytest.mark.shows("C.25")
async def test_a_work_that_has_begun_never_moves(error: AntiphonError) -> None:
    async with pooled(Part("a"), Part("b")) as pool:
        asked = work()
        first, (other,) = first_for(pool, asked)
        first.says(Text("Hel"), Text("lo"))
        first.fails(error, after=1)
        said = await ask(pool, asked)
        assert (said.text, said.error) == ("Hel", error)
        assert other.requests == 0


@pytest.mark.parametrize("error", WRONG, ids=lambda error: type(error).__name__)
async def test_what_is_wrong_with_the_request_itself_is_not_tried_again(error: AntiphonError) -> None:
    async with pooled(Part("a"), Part("b")) as pool:
        asked = work()
        first, (other,) = first_for(pool, asked)
        first.fails(error)
        assert (await ask(pool, asked)).error is error
        assert other.requests == 0
        assert all(member.failures == 0 for member in pool.members())


async def test_each_is_tried_once_and_the_last_error_is_told() -> None:
    parts = [Part("a"), Part("b"), Part("c")]
    async with pooled(*parts) as pool:
        for part in parts:
            part.fails(EngineFailed(f"{part.label} failed."))
        said = await ask(pool)
        assert isinstance(said.error, EngineFailed)
        assert [part.requests for part in parts] == [1, 1, 1]


async def test_all_attempts_have_one_deadline() -> None:
    parts = [Part("a"), Part("b")]
    async with pooled(*parts, patience=0.0) as pool:
        asked = work()
        first, (other,) = first_for(pool, asked)
        first.fails(EngineFailed("It failed, too late for another."))
        assert isinstance((await ask(pool, asked)).error, EngineFailed)
        assert other.requests == 0


@pytest.mark.shows("C.23")
async def test_an_engine_that_is_not_well_gets_no_work() -> None:
    async with pooled(Part("a"), Part("b")) as pool:
        asked = work()
        first, (other,) = first_for(pool, asked)
        first.up = False
        for _ in range(5):
            assert (await ask(pool, asked)).error is None
        assert (first.requests, other.requests) == (0, 5)
        first.up = True
        await ask(pool, asked)
        assert first.requests == 1, "it is used again as soon as it is well"


@pytest.mark.shows("C.23")
async def test_an_engine_that_fails_again_and_again_gets_a_pause_and_then_one_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ahead = 0.0
    monkeypatch.setattr("antiphon.engines.pool.pool._now", lambda: asyncio.get_running_loop().time() + ahead)
    async with pooled(Part("a"), Part("b")) as pool:
        asked = work()
        first, (other,) = first_for(pool, asked)
        for _ in range(FAILURES):
            first.fails(EngineFailed("HTTP status 500."))
            assert (await ask(pool, asked)).error is None
        assert first.requests == FAILURES
        await ask(pool, asked)
        assert (first.requests, other.requests) == (FAILURES, FAILURES + 1), "it is left alone"
        (state,) = [one for one in pool.states() if one.name == first.label]
        assert (state.breaker, state.failures, state.healthy) == ("open", FAILURES, True)
        ahead = PAUSE + 0.1
        (gate,) = first.held()
        async with asyncio.TaskGroup() as group:
            trial = group.create_task(ask(pool, asked))
            await until(lambda: first.running == 1)
            await ask(pool, asked)
            assert first.requests == FAILURES + 1, "one trial at a time"
            gate.open()
        assert trial.result().error is None
        await ask(pool, asked)
        assert first.requests == FAILURES + 2


async def test_the_log_says_once_that_an_engine_fails_again_and_again_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with pooled(Part("a"), Part("b")) as pool:
        asked = work()
        for _ in range(2 * FAILURES + 1):
            first, _ = first_for(pool, asked)
            first.fails(EngineFailed(f"It failed: out\nof {'memory ' * 99}"))
            await ask(pool, asked)
    said = [record.getMessage() for record in caplog.records if "again and again" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith(
        f"The engine {first.label} has failed again and again, the last time so: It failed: out of"
    )
    assert len(said[0]) < 300


@pytest.mark.parametrize("error", [Busy("Later.", retry_after=20.0), Unavailable("Later.", retry_after=20.0)])
async def test_an_engine_that_asks_for_a_rest_gets_it(error: AntiphonError, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = 0.0
    monkeypatch.setattr("antiphon.engines.pool.pool._now", lambda: asyncio.get_running_loop().time() + ahead)
    async with pooled(Part("a"), Part("b")) as pool:
        asked = work()
        first, _ = first_for(pool, asked)
        first.fails(error)
        for seconds, requests in ((0.0, 1), (19.0, 1), (21.0, 2)):
            ahead = seconds
            assert (await ask(pool, asked)).error is None
            assert first.requests == requests, seconds


async def test_when_nobody_can_be_given_work_the_client_is_told_when_to_come_back() -> None:
    parts = [Part("a"), Part("b")]
    async with pooled(*parts) as pool:
        for part in parts:
            part.fails(Busy("Later.", retry_after=7.0))
        assert isinstance((await ask(pool)).error, Busy)
        error = (await ask(pool)).error
        assert isinstance(error, Unavailable)
        assert error.retry_after is not None
        assert 1.0 <= error.retry_after <= 7.0
        for part in parts:
            part.up = False
        assert isinstance((await ask(pool)).error, Unavailable)
        assert not pool.healthy()


async def test_the_only_engine_there_is_is_asked_however_it_is() -> None:
    part = Part("a")
    async with pooled(part) as pool:
        part.up = False
        for _ in range(2 * FAILURES):
            part.fails(Unavailable("It cannot be reached.", retry_after=5.0))
            assert isinstance((await ask(pool)).error, Unavailable)
        assert part.requests == 2 * FAILURES
        assert (await ask(pool)).error is None


@pytest.mark.shows("C.24")
async def test_works_with_a_common_beginning_go_to_the_same_engine() -> None:
    parts = [Part(name) for name in "abcd"]
    async with pooled(*parts) as pool:
        homes: dict[int, Part] = {}
        for key in range(20):
            for turn in range(4):
                await ask(pool, work(f"turn {turn}", affinity=f"session {key}"))
                (home,) = [part for part in parts if part.requests]
                assert homes.setdefault(key, home) is home
                home.requests = 0
        assert len(set(homes.values())) > 1


@pytest.mark.shows("C.24")
async def test_one_key_for_all_does_not_make_one_engine_do_everything() -> None:
    parts = [Part("a"), Part("b")]
    async with pooled(*parts) as pool, asyncio.TaskGroup() as group:
        gates = [gate for part in parts for gate in part.held(40)]
        tasks = [group.create_task(ask(pool, work(affinity="one"))) for _ in range(40)]
        await until(lambda: sum(part.running for part in parts) == 40)
        assert max(part.running for part in parts) <= 1.25 * 40 / 2 + 1
        for gate in gates:
            gate.open()
    assert all(task.result().error is None for task in tasks)


async def test_no_engine_has_more_to_do_than_its_bound_and_who_waits_comes_in_turn() -> None:
    parts = [Part("a"), Part("b")]
    async with pooled(*parts, bound=2) as pool, asyncio.TaskGroup() as group:
        most = Counter[str]()
        gates = [gate for part in parts for gate in part.held(10)]
        tasks = [group.create_task(ask(pool, work(f"{number}"))) for number in range(10)]
        await until(lambda: sum(part.running for part in parts) == 4)
        for gate in gates:
            for part in parts:
                most[part.label] = max(most[part.label], part.running)
            gate.open()
            await asyncio.sleep(0)
    assert all(task.result().error is None for task in tasks)
    assert set(most.values()) == {2}


async def test_who_waits_for_room_is_not_let_wait_for_ever() -> None:
    part = Part("a")
    async with pooled(part, bound=1, patience=0.5) as pool:
        part.held()
        async with aclosing(pool.generate(work())) as busy:
            task = asyncio.ensure_future(anext(busy))
            await until(lambda: part.running == 1)
            assert isinstance((await ask(pool)).error, Busy)
            task.cancel()
            await asyncio.wait([task])
    assert (part.running, part.cancelled) == (0, 1)


@pytest.mark.parametrize("heard", [0, 1])
async def test_closing_cancels_the_work_and_says_nothing_about_the_engine(heard: int) -> None:
    part = Part("a")
    async with pooled(part, bound=1) as pool:
        for _ in range(2 * FAILURES):
            part.says(Text("one"), Text("two"), Text("three"))
            async with aclosing(pool.generate(work())) as lists:
                for _ in range(heard):
                    await anext(lists)
        assert (part.running, pool.members()[0].running) == (0, 0)
        assert pool.states()[0].breaker == "closed"


async def test_a_model_goes_to_those_who_have_it() -> None:
    small, large, both = Part("a", "small"), Part("b", "large"), Part("c", "small", "large")
    async with pooled(small, large, both) as pool:
        assert [model.id for model in pool.models()] == ["small", "large"]
        for number in range(30):
            assert (await ask(pool, work(f"{number}", model="large"))).error is None
        assert small.requests == 0
        assert large.requests
        assert both.requests
        assert not pool.serves("huge")
        assert isinstance((await ask(pool, work(model="huge"))).error, ModelNotFound)
        with pytest.raises(ModelNotFound):
            await pool.capabilities("huge")


async def test_the_first_model_is_that_of_the_first_engine_though_others_are_there_before_it() -> None:
    first, second = Part("a", "x", "y"), Part("b", "z")
    async with pooled(first, second) as pool:
        assert pool.first() == Model(id="x", created=1)
        first.up, first.names = False, ()  # as one that was never there
        assert pool.first() is None
        first.up = True  # and has none
        assert pool.first() == Model(id="z", created=1)


async def test_one_that_serves_any_name_is_not_asked_for_a_model_that_another_lists() -> None:
    class Anything(Part):
        def serves(self, model: str) -> bool:
            return True

    anything, listed = Anything("a", "own"), Part("b", "m")
    async with pooled(anything, listed) as pool:
        for number in range(20):
            await ask(pool, work(f"{number}"))
        assert (anything.requests, listed.requests) == (0, 20)
        assert (await ask(pool, work(model="whatever"))).error is None
        assert anything.requests == 1


async def test_all_else_that_engines_do_is_asked_of_another_if_one_fails() -> None:
    class Counting(Part):
        async def count(self, model: str, prompt: object) -> int:
            self.requests += 1
            if self.label == "a":
                raise EngineFailed("It hung up.")
            return 42

    class Refusing(Part):
        async def detokenize(self, model: str, tokens: object) -> str:
            self.requests += 1
            raise BadRequest("These are no tokens.")

    async with pooled(Counting("a"), Counting("b")) as pool:
        assert [await pool.count("m", work().prompt) for _ in range(2 * FAILURES)] == [42] * 2 * FAILURES
        first = pool.members()[0]
        assert isinstance(first.engine, Counting)
        assert first.engine.requests == FAILURES, "and after a few failures it is left alone"
    async with pooled(Refusing("a"), Refusing("b")) as pool:
        with pytest.raises(BadRequest):
            await pool.detokenize("m", [1, 2])
        assert sum(part.requests for member in pool.members() if isinstance(part := member.engine, Part)) == 1


async def test_the_name_says_what_it_is_made_of() -> None:
    class Other(Part):
        name = "other"

    async with pooled(Part("a"), Part("b")) as pool:
        assert pool.name == "fake"
    async with pooled(Part("a"), Other("b")) as pool:
        assert pool.name == "fake+other"
