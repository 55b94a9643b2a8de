from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.stream_lanes import LaneBounds, Lanes
from antiphon.errors import Busy, ConcurrentRequest, TooManyStreams


def lanes(**bounds: Any) -> Lanes[int]:
    return Lanes(LaneBounds(**bounds))


@pytest.mark.shows("F.6")
def test_a_second_piece_of_work_on_a_lane_waits_for_the_first() -> None:
    one = lanes()
    assert [*one.put(None, 1, 10)] == [(None, 1)]
    assert [*one.put(None, 2, 10)] == [*one.put(None, 3, 10)] == []
    assert [*one.done(None)] == [(None, 2)]
    assert [*one.done(None)] == [(None, 3)]
    assert [*one.done(None)] == []
    assert one.idle


@pytest.mark.shows("F.6")
def test_lanes_run_side_by_side_and_no_more_of_them_than_are_allowed() -> None:
    one = lanes(running=2)
    assert [*one.put("a", 1, 0), *one.put("b", 2, 0)] == [("a", 1), ("b", 2)]
    assert [*one.put("c", 3, 0), *one.put("a", 4, 0)] == []
    assert [*one.done("b")] == [("c", 3)]
    assert [*one.done("c")] == []  # what waits on a lane waits for that lane
    assert [*one.done("a")] == [("a", 4)]


@pytest.mark.shows("F1.6")
def test_a_client_has_so_many_names_and_no_more_even_if_it_uses_them_no_longer() -> None:
    one = lanes(named=2)
    for name in ("a", "b", "a"):
        one.put(name, 0, 0)
        one.done(name)
    with pytest.raises(TooManyStreams) as caught:
        one.put("c", 0, 0)
    assert (caught.value.code, caught.value.param) == ("websocket_stream_limit_reached", "stream_id")
    assert [*one.put(None, 5, 0)] == [(None, 5)]  # the one without a name counts for none


@pytest.mark.shows("F.7", "F1.3")
def test_where_there_is_one_lane_nothing_waits() -> None:
    one: Lanes[int] = Lanes(LaneBounds(alone=True))
    one.put(None, 1, 0)
    with pytest.raises(ConcurrentRequest) as caught:
        one.put(None, 2, 0)
    assert caught.value.code == "concurrent_request"
    assert [*one.done(None)] == []
    assert [*one.put(None, 3, 0)] == [(None, 3)]


@pytest.mark.parametrize("bounds", [{"waiting": 1}, {"waiting_bytes": 10}])
def test_what_waits_is_bounded_in_number_and_in_bytes(bounds: dict[str, int]) -> None:
    one = lanes(**bounds)
    one.put(None, 1, 1000)
    one.put(None, 2, 10)
    with pytest.raises(Busy):
        one.put(None, 3, 10)
    assert [*one.done(None)] == [(None, 2)]
    assert [*one.put(None, 4, 10)] == []


def test_nothing_begins_any_more_once_all_that_waits_is_dropped() -> None:
    one = lanes()
    one.put(None, 1, 0)
    one.put(None, 2, 0)
    one.clear()
    assert [*one.done(None)] == []


@settings(max_examples=200)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from([None, "a", "b", "c"])), max_size=60), st.integers(1, 4))
def test_each_lane_keeps_its_order_and_nobody_is_forgotten(steps: list[tuple[bool, str | None]], running: int) -> None:
    one = lanes(running=running, waiting=100)
    runs: dict[str | None, int] = {}
    begun: dict[str | None, list[int]] = {}

    def note(started: object) -> None:
        for lane, work in started:  # type: ignore[attr-defined]  # pairs
            assert lane not in runs
            runs[lane] = work
            begun.setdefault(lane, []).append(work)
        assert len(runs) <= running

    for number, (puts, lane) in enumerate(steps):
        if puts:
            note(one.put(lane, number, 0))
        elif runs.pop(lane, None) is not None:
            note(one.done(lane))
    while runs:
        lane = next(iter(runs))
        del runs[lane]
        note(one.done(lane))
    for lane in (None, "a", "b", "c"):
        assert begun.get(lane, []) == [number for number, step in enumerate(steps) if step == (True, lane)]
