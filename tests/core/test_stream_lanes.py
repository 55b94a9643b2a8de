"""Stream lanes of a WebSocket connection: order within a lane, parallel lanes, and the limits on names and waiting
tasks.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.stream_lanes import LaneLimits, StreamLanes
from antiphon.errors import Busy, ConcurrentRequest, TooManyStreams


def make_lanes(**bounds: Any) -> StreamLanes[int]:
    return StreamLanes(LaneLimits(**bounds))


@pytest.mark.shows("F.6")
def test_a_second_task_on_a_lane_waits_for_the_first() -> None:
    one = make_lanes()
    assert [*one.submit(None, 1, 10)] == [(None, 1)]
    assert [*one.submit(None, 2, 10)] == [*one.submit(None, 3, 10)] == []
    assert [*one.finish(None)] == [(None, 2)]
    assert [*one.finish(None)] == [(None, 3)]
    assert [*one.finish(None)] == []
    assert one.is_idle


@pytest.mark.shows("F.6")
def test_lanes_run_in_parallel_up_to_the_limit() -> None:
    one = make_lanes(max_running=2)
    assert [*one.submit("a", 1, 0), *one.submit("b", 2, 0)] == [("a", 1), ("b", 2)]
    assert [*one.submit("c", 3, 0), *one.submit("a", 4, 0)] == []
    assert [*one.finish("b")] == [("c", 3)]
    assert [*one.finish("c")] == []  # a task waits for its own lane only
    assert [*one.finish("a")] == [("a", 4)]


@pytest.mark.shows("F1.6")
def test_the_number_of_lane_names_is_limited_even_for_idle_lanes() -> None:
    one = make_lanes(max_named=2)
    for name in ("a", "b", "a"):
        one.submit(name, 0, 0)
        one.finish(name)
    with pytest.raises(TooManyStreams) as caught:
        one.submit("c", 0, 0)
    assert (caught.value.code, caught.value.param) == ("websocket_stream_limit_reached", "stream_id")
    assert [*one.submit(None, 5, 0)] == [(None, 5)]  # the unnamed lane does not count


@pytest.mark.shows("F.7", "F1.3")
def test_an_exclusive_lane_rejects_a_concurrent_request() -> None:
    one: StreamLanes[int] = StreamLanes(LaneLimits(exclusive=True))
    one.submit(None, 1, 0)
    with pytest.raises(ConcurrentRequest) as caught:
        one.submit(None, 2, 0)
    assert caught.value.code == "concurrent_request"
    assert [*one.finish(None)] == []
    assert [*one.submit(None, 3, 0)] == [(None, 3)]


@pytest.mark.parametrize("bounds", [{"max_waiting": 1}, {"max_waiting_bytes": 10}])
def test_waiting_tasks_are_limited_in_number_and_in_bytes(bounds: dict[str, int]) -> None:
    one = make_lanes(**bounds)
    one.submit(None, 1, 1000)
    one.submit(None, 2, 10)
    with pytest.raises(Busy):
        one.submit(None, 3, 10)
    assert [*one.finish(None)] == [(None, 2)]
    assert [*one.submit(None, 4, 10)] == []


def test_cleared_lanes_start_no_waiting_task() -> None:
    one = make_lanes()
    one.submit(None, 1, 0)
    one.submit(None, 2, 0)
    one.clear()
    assert [*one.finish(None)] == []


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([None, "a", "b", "c"])), max_size=60), st.integers(1, 4))
def test_each_lane_runs_every_task_in_order(steps: list[tuple[bool, str | None]], running: int) -> None:
    one = make_lanes(max_running=running, max_waiting=100)
    runs: dict[str | None, int] = {}
    begun: dict[str | None, list[int]] = {}

    def note(started: object) -> None:
        for lane, task in started:  # type: ignore[attr-defined]  # pairs of lane and task
            assert lane not in runs
            runs[lane] = task
            begun.setdefault(lane, []).append(task)
        assert len(runs) <= running

    for number, (puts, lane) in enumerate(steps):
        if puts:
            note(one.submit(lane, number, 0))
        elif runs.pop(lane, None) is not None:
            note(one.finish(lane))
    while runs:
        lane = next(iter(runs))
        del runs[lane]
        note(one.finish(lane))
    for lane in (None, "a", "b", "c"):
        assert begun.get(lane, []) == [number for number, step in enumerate(steps) if step == (True, lane)]
