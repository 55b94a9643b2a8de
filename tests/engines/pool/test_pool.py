"""Several engines as one: requests move to another engine only before the first chunk, and caches stay warm.

Covers `engines/pool/selection.py`.
"""

import asyncio
from collections import Counter
from contextlib import aclosing

import pytest

from antiphon.core.deltas import Text
from antiphon.engines.base import Model
from antiphon.engines.pool.members import FAILURES, PAUSE
from antiphon.errors import AntiphonError, BadRequest, Busy, ContextTooLong, EngineFailed, ModelNotFound, Unavailable
from tests.engines.pool.members import FakeMember, find_preferred, make_request, open_pool, run_generation, wait_until

pytestmark = pytest.mark.anyio

RETRIED_ERRORS = [
    EngineFailed("It closed the connection."),
    Unavailable("It cannot be reached.", retry_after=1.0),
    Busy("It is overloaded.", retry_after=1.0),
    ModelNotFound("It does not have the model any more."),
]
REQUEST_ERRORS = [BadRequest("It rejected this."), ContextTooLong("It is too long.", param="input")]


@pytest.mark.parametrize("error", RETRIED_ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.shows("C.25")
async def test_a_request_that_fails_before_the_first_chunk_moves_to_another_engine(error: AntiphonError) -> None:
    async with open_pool(FakeMember("a"), FakeMember("b"), FakeMember("c")) as pool:
        request = make_request()
        first, others = find_preferred(pool, request)
        first.fails(error)
        result = await run_generation(pool, request)
        assert result.error is None
        assert result.text == "You said: hi"
        assert (first.requests, sorted(other.requests for other in others)) == (1, [0, 1])


@pytest.mark.parametrize("error", [*RETRIED_ERRORS, *REQUEST_ERRORS], ids=lambda error: type(error).__name__)
@pytest.mark.shows("C.25")
async def test_a_request_that_has_started_never_moves(error: AntiphonError) -> None:
    async with open_pool(FakeMember("a"), FakeMember("b")) as pool:
        request = make_request()
        first, (other,) = find_preferred(pool, request)
        first.says(Text("Hel"), Text("lo"))
        first.fails(error, after=1)
        result = await run_generation(pool, request)
        assert (result.text, result.error) == ("Hel", error)
        assert other.requests == 0


@pytest.mark.parametrize("error", REQUEST_ERRORS, ids=lambda error: type(error).__name__)
async def test_an_invalid_request_is_not_retried(error: AntiphonError) -> None:
    async with open_pool(FakeMember("a"), FakeMember("b")) as pool:
        request = make_request()
        first, (other,) = find_preferred(pool, request)
        first.fails(error)
        assert (await run_generation(pool, request)).error is error
        assert other.requests == 0
        assert all(member.failures == 0 for member in pool.members())


async def test_each_engine_is_tried_once_and_the_last_error_is_raised() -> None:
    members = [FakeMember("a"), FakeMember("b"), FakeMember("c")]
    async with open_pool(*members) as pool:
        for member in members:
            member.fails(EngineFailed(f"{member.label} failed."))
        result = await run_generation(pool)
        assert isinstance(result.error, EngineFailed)
        assert [member.requests for member in members] == [1, 1, 1]


async def test_all_attempts_share_one_deadline() -> None:
    members = [FakeMember("a"), FakeMember("b")]
    async with open_pool(*members, seconds=0.0) as pool:
        request = make_request()
        first, (other,) = find_preferred(pool, request)
        first.fails(EngineFailed("It failed, too late for another."))
        assert isinstance((await run_generation(pool, request)).error, EngineFailed)
        assert other.requests == 0


@pytest.mark.shows("C.23")
async def test_an_unhealthy_engine_gets_no_requests() -> None:
    async with open_pool(FakeMember("a"), FakeMember("b")) as pool:
        request = make_request()
        first, (other,) = find_preferred(pool, request)
        first.up = False
        for _ in range(5):
            assert (await run_generation(pool, request)).error is None
        assert (first.requests, other.requests) == (0, 5)
        first.up = True
        await run_generation(pool, request)
        assert first.requests == 1, "it is used again as soon as it is healthy"


@pytest.mark.shows("C.23")
async def test_a_repeatedly_failing_engine_gets_a_pause_and_then_one_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offset = 0.0
    monkeypatch.setattr("antiphon.engines.pool.selection._now", lambda: asyncio.get_running_loop().time() + offset)
    async with open_pool(FakeMember("a"), FakeMember("b")) as pool:
        request = make_request()
        first, (other,) = find_preferred(pool, request)
        for _ in range(FAILURES):
            first.fails(EngineFailed("HTTP status 500."))
            assert (await run_generation(pool, request)).error is None
        assert first.requests == FAILURES
        await run_generation(pool, request)
        assert (first.requests, other.requests) == (FAILURES, FAILURES + 1), "its breaker is open"
        (state,) = [one for one in pool.statuses() if one.name == first.label]
        assert (state.breaker, state.failures, state.healthy) == ("open", FAILURES, True)
        offset = PAUSE + 0.1
        (gate,) = first.hold_answers()
        async with asyncio.TaskGroup() as group:
            trial = group.create_task(run_generation(pool, request))
            await wait_until(lambda: first.running == 1)
            await run_generation(pool, request)
            assert first.requests == FAILURES + 1, "one trial at a time"
            gate.open()
        assert trial.result().error is None
        await run_generation(pool, request)
        assert first.requests == FAILURES + 2


async def test_repeated_failures_of_an_engine_are_logged_once_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_pool(FakeMember("a"), FakeMember("b")) as pool:
        request = make_request()
        for _ in range(2 * FAILURES + 1):
            first, _ = find_preferred(pool, request)
            first.fails(EngineFailed(f"It failed: out\nof {'memory ' * 99}"))
            await run_generation(pool, request)
    messages = [record.getMessage() for record in caplog.records if "keeps failing" in record.getMessage()]
    assert len(messages) == 1
    assert messages[0].startswith(
        f"The engine {first.label} keeps failing and is paused; last error: It failed: out of"
    )
    assert len(messages[0]) < 300


@pytest.mark.parametrize("error", [Busy("Later.", retry_after=20.0), Unavailable("Later.", retry_after=20.0)])
async def test_the_retry_after_of_an_engine_is_honoured(error: AntiphonError, monkeypatch: pytest.MonkeyPatch) -> None:
    offset = 0.0
    monkeypatch.setattr("antiphon.engines.pool.selection._now", lambda: asyncio.get_running_loop().time() + offset)
    async with open_pool(FakeMember("a"), FakeMember("b")) as pool:
        request = make_request()
        first, _ = find_preferred(pool, request)
        first.fails(error)
        for seconds, requests in ((0.0, 1), (19.0, 1), (21.0, 2)):
            offset = seconds
            assert (await run_generation(pool, request)).error is None
            assert first.requests == requests, seconds


async def test_the_error_without_available_engines_has_a_retry_after() -> None:
    members = [FakeMember("a"), FakeMember("b")]
    async with open_pool(*members) as pool:
        for member in members:
            member.fails(Busy("Later.", retry_after=7.0))
        assert isinstance((await run_generation(pool)).error, Busy)
        error = (await run_generation(pool)).error
        assert isinstance(error, Unavailable)
        assert error.retry_after is not None
        assert 1.0 <= error.retry_after <= 7.0
        for member in members:
            member.up = False
        assert isinstance((await run_generation(pool)).error, Unavailable)
        assert not pool.is_healthy()


async def test_a_single_engine_is_called_even_if_unhealthy() -> None:
    member = FakeMember("a")
    async with open_pool(member) as pool:
        member.up = False
        for _ in range(2 * FAILURES):
            member.fails(Unavailable("It cannot be reached.", retry_after=5.0))
            assert isinstance((await run_generation(pool)).error, Unavailable)
        assert member.requests == 2 * FAILURES
        assert (await run_generation(pool)).error is None


@pytest.mark.shows("C.24")
async def test_requests_with_the_same_affinity_go_to_the_same_engine() -> None:
    members = [FakeMember(name) for name in "abcd"]
    async with open_pool(*members) as pool:
        homes: dict[int, FakeMember] = {}
        for key in range(20):
            for turn in range(4):
                await run_generation(pool, make_request(f"turn {turn}", affinity=f"session {key}"))
                (home,) = [member for member in members if member.requests]
                assert homes.setdefault(key, home) is home
                home.requests = 0
        assert len(set(homes.values())) > 1


@pytest.mark.shows("C.24")
async def test_a_single_affinity_key_does_not_overload_one_engine() -> None:
    members = [FakeMember("a"), FakeMember("b")]
    async with open_pool(*members) as pool, asyncio.TaskGroup() as group:
        gates = [gate for member in members for gate in member.hold_answers(40)]
        tasks = [group.create_task(run_generation(pool, make_request(affinity="one"))) for _ in range(40)]
        await wait_until(lambda: sum(member.running for member in members) == 40)
        assert max(member.running for member in members) <= 1.25 * 40 / 2 + 1
        for gate in gates:
            gate.open()
    assert all(task.result().error is None for task in tasks)


async def test_no_engine_exceeds_its_limit_and_waiting_requests_follow() -> None:
    members = [FakeMember("a"), FakeMember("b")]
    async with open_pool(*members, max_running=2) as pool, asyncio.TaskGroup() as group:
        peaks = Counter[str]()
        gates = [gate for member in members for gate in member.hold_answers(10)]
        tasks = [group.create_task(run_generation(pool, make_request(f"{number}"))) for number in range(10)]
        await wait_until(lambda: sum(member.running for member in members) == 4)
        for gate in gates:
            for member in members:
                peaks[member.label] = max(peaks[member.label], member.running)
            gate.open()
            await asyncio.sleep(0)
    assert all(task.result().error is None for task in tasks)
    assert set(peaks.values()) == {2}


async def test_waiting_for_a_free_slot_times_out() -> None:
    member = FakeMember("a")
    async with open_pool(member, max_running=1, seconds=0.5) as pool:
        member.hold_answers()
        async with aclosing(pool.generate(make_request())) as busy:
            task = asyncio.ensure_future(anext(busy))
            await wait_until(lambda: member.running == 1)
            assert isinstance((await run_generation(pool)).error, Busy)
            task.cancel()
            await asyncio.wait([task])
    assert (member.running, member.cancelled) == (0, 1)


@pytest.mark.parametrize("chunk_count", [0, 1])
async def test_closing_cancels_the_request_without_counting_a_failure(chunk_count: int) -> None:
    member = FakeMember("a")
    async with open_pool(member, max_running=1) as pool:
        for _ in range(2 * FAILURES):
            member.says(Text("one"), Text("two"), Text("three"))
            async with aclosing(pool.generate(make_request())) as lists:
                for _ in range(chunk_count):
                    await anext(lists)
        assert (member.running, pool.members()[0].running) == (0, 0)
        assert pool.statuses()[0].breaker == "closed"


async def test_a_request_goes_to_an_engine_that_serves_its_model() -> None:
    small, large, both = FakeMember("a", "small"), FakeMember("b", "large"), FakeMember("c", "small", "large")
    async with open_pool(small, large, both) as pool:
        assert [model.id for model in pool.models()] == ["small", "large"]
        for number in range(30):
            assert (await run_generation(pool, make_request(f"{number}", model="large"))).error is None
        assert small.requests == 0
        assert large.requests
        assert both.requests
        assert not pool.serves("huge")
        assert isinstance((await run_generation(pool, make_request(model="huge"))).error, ModelNotFound)
        with pytest.raises(ModelNotFound):
            await pool.capabilities("huge")


async def test_the_first_model_is_that_of_the_first_engine() -> None:
    first, second = FakeMember("a", "x", "y"), FakeMember("b", "z")
    async with open_pool(first, second) as pool:
        assert pool.default_model() == Model(id="x", created=1)
        first.up, first.names = False, ()  # like an engine that was never reachable
        assert pool.default_model() is None
        first.up = True  # reachable, but without models
        assert pool.default_model() == Model(id="z", created=1)


async def test_an_engine_that_lists_the_model_is_preferred_to_one_that_serves_any_name() -> None:
    class Anything(FakeMember):
        def serves(self, model: str) -> bool:
            return True

    anything, listed = Anything("a", "own"), FakeMember("b", "m")
    async with open_pool(anything, listed) as pool:
        for number in range(20):
            await run_generation(pool, make_request(f"{number}"))
        assert (anything.requests, listed.requests) == (0, 20)
        assert (await run_generation(pool, make_request(model="whatever"))).error is None
        assert anything.requests == 1


async def test_other_tasks_are_retried_on_another_engine() -> None:
    class Counting(FakeMember):
        async def count_tokens(self, model: str, prompt: object) -> int:
            self.requests += 1
            if self.label == "a":
                raise EngineFailed("It closed the connection.")
            return 42

    class Refusing(FakeMember):
        async def detokenize(self, model: str, tokens: object) -> str:
            self.requests += 1
            raise BadRequest("These are no tokens.")

    async with open_pool(Counting("a"), Counting("b")) as pool:
        assert [await pool.count_tokens("m", make_request().prompt) for _ in range(2 * FAILURES)] == [42] * 2 * FAILURES
        first = pool.members()[0]
        assert isinstance(first.engine, Counting)
        assert first.engine.requests == FAILURES, "its breaker opens after a few failures"
    async with open_pool(Refusing("a"), Refusing("b")) as pool:
        with pytest.raises(BadRequest):
            await pool.detokenize("m", [1, 2])
        assert sum(engine.requests for member in pool.members() if isinstance(engine := member.engine, FakeMember)) == 1


async def test_the_pool_name_joins_the_names_of_its_engines() -> None:
    class Other(FakeMember):
        name = "other"

    async with open_pool(FakeMember("a"), FakeMember("b")) as pool:
        assert pool.name == "fake"
    async with open_pool(FakeMember("a"), Other("b")) as pool:
        assert pool.name == "fake+other"
