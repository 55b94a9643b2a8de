"""Tests the metrics of several workers, which each of them reports merged, including those of workers that are gone.

Covers `observe/prometheus.py`.
"""

import os
import signal
from functools import partial

import pytest

from antiphon.observe import Metrics
from antiphon.observe.multiprocess import SharedPages, WorkerMetrics
from antiphon.observe.prometheus import MergeMode, Registry
from antiphon.testing.rows.response_rows import Clock
from tests.observe.test_metrics import parse_samples


class Worker:
    """A worker with a counter, a histogram, and gauges of every merge mode."""

    def __init__(self, pages: SharedPages, number: int, clock: Clock) -> None:
        self.registry = Registry()
        self.joined = WorkerMetrics(self.registry, pages, number, clock)
        self.requests = self.registry.counter("requests_total", "Help.", ("route",))
        self.seconds = self.registry.histogram("seconds", "Help.", bounds=(1.0,))[()]
        self.load = 1.0
        rules: tuple[MergeMode, ...] = ("sum", "most", "least", "each")
        for rule in rules:
            self.registry.gauge(f"load_{rule}", "Help.", ("a",), read=lambda: {"b": self.load}, merge_mode=rule)
        self.registry.gauge("cpu_total", "Help.", read=lambda: self.load, merge_mode="each")

    def read_metrics(self) -> dict[str, float]:
        """Return the merged values by name and label values."""
        parsed = parse_samples(self.joined.text()).items()
        return {" ".join([name, *(value for _, value in labels)]): sample for (name, labels), sample in parsed}


@pytest.mark.shows("H.8")
def test_every_worker_reports_the_metrics_of_all_workers(clock: Clock) -> None:
    pages = SharedPages(2)
    one, two = Worker(pages, 1, clock), Worker(pages, 2, clock)
    one.requests[("/a",)].add(2)
    two.requests[("/a",)].add(3)
    two.requests[("/b",)].add(1)
    one.seconds.observe(0.5)
    two.seconds.observe(5.0)
    one.load, two.load = 1.0, 4.0
    one.read_metrics()
    assert two.read_metrics() == one.read_metrics()
    assert one.read_metrics() == {
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


def test_counters_of_a_gone_worker_remain_and_its_gauges_disappear(clock: Clock) -> None:
    pages = SharedPages(2)
    one, two = Worker(pages, 1, clock), Worker(pages, 2, clock)
    two.requests[("/a",)].add(3)
    two.requests[("/only",)].add(1)
    two.read_metrics()
    clock.now += 60
    found = one.read_metrics()
    assert found["requests_total /a"] == 3
    assert found["load_sum b"] == 1
    assert "cpu_total 2" not in found
    another = Worker(pages, 2, clock)
    assert another.read_metrics()["requests_total /only"] == 1, "the successor inherits the counters of a gone worker"
    another.requests[("/a",)].add(4)
    third = Worker(pages, 2, clock)
    assert third.read_metrics()["requests_total /a"] == 3, "unpublished counts are lost"
    third.requests[("/a",)].add(4)
    assert third.read_metrics()["requests_total /a"] == 7
    assert one.read_metrics()["requests_total /a"] == 7
    assert Worker(pages, 2, clock).read_metrics()["requests_total /a"] == 7
    assert one.read_metrics()["seconds_count"] == 0


def test_a_page_stays_consistent_when_its_writer_is_killed() -> None:
    pages = SharedPages(1)
    bodies = [bytes([number]) * size for number, size in ((1, 3_000_000), (2, 17), (3, 2_000_000))]
    for _ in range(20):
        child = os.fork()
        if child == 0:
            while True:
                for body in bodies:
                    pages.write(1, body)
        while not pages.read(1):
            pass
        for _ in range(50):
            assert pages.read(1) in (*bodies, b"")
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert pages.read(1) in bodies


def test_an_oversized_body_is_rejected_and_leaves_the_page_unchanged() -> None:
    pages = SharedPages(1)
    assert pages.read(1) == b""
    pages.write(1, b"kept")
    with pytest.raises(ValueError, match="do not fit"):
        pages.write(1, bytes(5_000_000))
    assert pages.read(1) == b"kept"


def test_server_metrics_are_merged_across_workers() -> None:
    pages = SharedPages(2)
    both = [Metrics("1.2.3") for _ in range(2)]
    for number, metrics in enumerate(both, 1):
        metrics.merge_workers(pages, number)
        metrics.record_request("/v1/responses", 200, 0.1 * number)
        metrics.registry.gauge("antiphon_shedding_stage", "Help.", read=partial(int, number), merge_mode="most")
        metrics.text()
    found = parse_samples(both[0].text())
    assert found["antiphon_requests_total", (("route", "/v1/responses"), ("status", "200"))] == 2
    assert found["antiphon_worker_requests_total", (("worker", "2"),)] == 1
    assert found["antiphon_shedding_stage", ()] == 2
    assert [value for (name, _), value in found.items() if name == "antiphon_build_info"] == [1]
    assert found["process_open_fds", (("worker", "1"),)] > 0
