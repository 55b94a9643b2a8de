"""What several workers tell of themselves as one, whoever is asked and whoever is gone."""

import os
import signal
from functools import partial

import pytest

from antiphon.observe import Metrics
from antiphon.observe.multiprocess import Board, Joined
from antiphon.observe.prometheus import Joining, Registry
from tests.observe.test_metrics import samples
from tests.stores.rows import Clock


class Worker:
    """One of several, with something to count and something to be read."""

    def __init__(self, board: Board, place: int, clock: Clock) -> None:
        self.registry = Registry()
        self.joined = Joined(self.registry, board, place, clock)
        self.requests = self.registry.counter("requests_total", "Help.", ("route",))
        self.seconds = self.registry.histogram("seconds", "Help.", bounds=(1.0,))[()]
        self.load = 1.0
        rules: tuple[Joining, ...] = ("sum", "most", "least", "each")
        for rule in rules:
            self.registry.gauge(f"load_{rule}", "Help.", ("a",), read=lambda: [(("b",), self.load)], joining=rule)
        self.registry.gauge("cpu_total", "Help.", read=lambda: [((), self.load)], kind="counter", joining="each")

    def told(self) -> dict[str, float]:
        """By the name and the values of the labels."""
        found = samples(self.joined.text()).items()
        return {" ".join([name, *(value for _, value in labels)]): number for (name, labels), number in found}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.shows("H.8")
def test_whoever_is_asked_tells_of_all(clock: Clock) -> None:
    board = Board(2)
    one, two = Worker(board, 1, clock), Worker(board, 2, clock)
    one.requests[("/a",)].add(2)
    two.requests[("/a",)].add(3)
    two.requests[("/b",)].add(1)
    one.seconds.observe(0.5)
    two.seconds.observe(5.0)
    one.load, two.load = 1.0, 4.0
    one.told()
    assert two.told() == one.told()
    assert one.told() == {
        "requests_total /a": 5,
        "requests_total /b": 1,
        "seconds_bucket 1": 1,
        "seconds_bucket +Inf": 2,
        "seconds_sum": 5.5,
        "seconds_count": 2,
        "load_sum b": 5,
        "load_most b": 4,
        "load_least b": 1,
        "load_each b 1": 1,
        "load_each b 2": 4,
        "cpu_total 1": 1,
        "cpu_total 2": 4,
    }


def test_what_a_worker_that_is_gone_has_counted_stays_and_what_it_was_goes(clock: Clock) -> None:
    board = Board(2)
    one, two = Worker(board, 1, clock), Worker(board, 2, clock)
    two.requests[("/a",)].add(3)
    two.requests[("/only",)].add(1)
    two.told()
    clock.now += 60
    found = one.told()
    assert found["requests_total /a"] == 3
    assert found["load_sum b"] == 1
    assert "cpu_total 2" not in found
    another = Worker(board, 2, clock)
    assert another.told()["requests_total /only"] == 1, "what nobody has counted again"
    another.requests[("/a",)].add(4)
    third = Worker(board, 2, clock)
    assert third.told()["requests_total /a"] == 3, "what nobody was told of is lost"
    third.requests[("/a",)].add(4)
    assert third.told()["requests_total /a"] == 7
    assert one.told()["requests_total /a"] == 7
    assert Worker(board, 2, clock).told()["requests_total /a"] == 7
    assert one.told()["seconds_count"] == 0


def test_a_page_is_whole_whoever_is_killed_while_it_is_written() -> None:
    board = Board(1)
    bodies = [bytes([number]) * size for number, size in ((1, 3_000_000), (2, 17), (3, 2_000_000))]
    for _ in range(20):
        child = os.fork()
        if child == 0:
            while True:
                for body in bodies:
                    board.write(1, body)
        while not board.read(1):
            pass
        for _ in range(50):
            assert board.read(1) in (*bodies, b"")
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert board.read(1) in bodies


def test_a_page_has_an_end() -> None:
    board = Board(1)
    assert board.read(1) == b""
    board.write(1, b"kept")
    with pytest.raises(ValueError, match="do not fit"):
        board.write(1, bytes(5_000_000))
    assert board.read(1) == b"kept"


def test_the_series_of_a_server_say_how_several_are_one() -> None:
    board = Board(2)
    both = [Metrics("1.2.3") for _ in range(2)]
    for number, metrics in enumerate(both, 1):
        metrics.join(board, number)
        metrics.request_done("/v1/responses", 200, 0.1 * number)
        metrics.watch_pressure(partial(int, number), dict)
        metrics.text()
    found = samples(both[0].text())
    assert found["antiphon_requests_total", (("route", "/v1/responses"), ("status", "200"))] == 2
    assert found["antiphon_worker_requests_total", (("worker", "2"),)] == 1
    assert found["antiphon_shedding_stage", ()] == 2
    assert [value for (name, _), value in found.items() if name == "antiphon_build_info"] == [1]
    assert found["process_open_fds", (("worker", "1"),)] > 0
