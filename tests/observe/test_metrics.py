import asyncio
import json
import logging
import timeit
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from antiphon.engines.base import State
from antiphon.observe import Metrics, set_up_logging
from antiphon.observe.logs import LOGGERS
from antiphon.observe.prometheus import Registry


class Counts(Struct):
    input_tokens: int = 10
    cached_tokens: int = 4
    output_tokens: int = 5


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("1.2.3")


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """As Prometheus' own parser reads it."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return samples(metrics.text())[name, tuple(sorted(labels.items()))]


@pytest.mark.shows("H.8")
def test_requests_are_counted_by_route_and_status(metrics: Metrics) -> None:
    metrics.request_done("/v1/responses", 200, 0.2)
    metrics.request_done("/v1/responses", 200, 0.4)
    metrics.request_done("/v1/responses", 429, 0.001)
    assert value(metrics, "antiphon_requests_total", route="/v1/responses", status="200") == 2
    assert value(metrics, "antiphon_requests_total", route="/v1/responses", status="429") == 1
    assert value(metrics, "antiphon_request_duration_seconds_count", route="/v1/responses") == 3
    assert value(metrics, "antiphon_request_duration_seconds_sum", route="/v1/responses") == pytest.approx(0.601)
    assert value(metrics, "antiphon_request_duration_seconds_bucket", route="/v1/responses", le="0.3") == 2


@pytest.mark.shows("H.8")
def test_a_response_is_told_of_with_its_tokens_and_times(metrics: Metrics) -> None:
    metrics.response_done("completed", Counts(), ttft=0.5, duration=0.9)
    assert value(metrics, "antiphon_responses_total", status="completed") == 1
    assert value(metrics, "antiphon_prompt_tokens_total") == 10
    assert value(metrics, "antiphon_cached_tokens_total") == 4
    assert value(metrics, "antiphon_generation_tokens_total") == 5
    assert value(metrics, "antiphon_time_to_first_token_seconds_sum") == 0.5
    assert value(metrics, "antiphon_time_per_output_token_seconds_sum") == pytest.approx(0.1)
    assert value(metrics, "antiphon_e2e_request_latency_seconds_sum") == 0.9


def test_a_response_without_a_token_has_no_time_to_it(metrics: Metrics) -> None:
    metrics.response_done("failed", Counts(output_tokens=0), ttft=None, duration=0.9)
    assert value(metrics, "antiphon_time_to_first_token_seconds_count") == 0
    assert value(metrics, "antiphon_time_per_output_token_seconds_count") == 0
    metrics.response_done("completed", Counts(output_tokens=1), ttft=0.5, duration=0.9)
    assert value(metrics, "antiphon_time_per_output_token_seconds_count") == 0


def test_gauges_are_read_when_asked_for(metrics: Metrics) -> None:
    queue = {"running": 1, "waiting": 0}
    metrics.watch_queue(lambda: queue["running"], lambda: queue["waiting"])
    odd = 'odd "name"\\\n'
    well = State(name="one", engine="fake", models=("a",), healthy=True, running=3)
    ill = State(name="two", engine="fake", models=(odd,), healthy=False, breaker="open", failures=4, draining=True)
    metrics.watch_engines(lambda: [well, ill])
    assert value(metrics, "antiphon_num_requests_running") == 1
    queue["running"] = 5
    assert value(metrics, "antiphon_num_requests_running") == 5
    assert value(metrics, "antiphon_num_requests_waiting") == 0
    assert value(metrics, "antiphon_engine_up", engine="one", model="a") == 1
    assert value(metrics, "antiphon_engine_up", engine="two", model=odd) == 0
    assert value(metrics, "antiphon_engine_running", engine="one") == 3
    assert value(metrics, "antiphon_engine_breaker", engine="two") == 1
    assert value(metrics, "antiphon_engine_draining", engine="two") == 1
    assert value(metrics, "antiphon_engine_failures_total", engine="two") == 4


def test_the_build_and_the_process_are_told_of(metrics: Metrics) -> None:
    text = metrics.text().decode()
    assert 'antiphon_build_info{version="1.2.3",python="3.' in text
    assert value(metrics, "process_cpu_seconds_total") > 0
    assert value(metrics, "process_resident_memory_bytes") > 1e6
    assert value(metrics, "process_open_fds") > 0
    assert value(metrics, "process_start_time_seconds") > 1.7e9


def test_buckets_add_up_and_bounds_belong_to_the_lower_bucket() -> None:
    registry = Registry()
    histogram = registry.histogram("h", "Help.", bounds=(1.0, 2.5))[()]
    for number in (0.0, 1.0, 1.1, 2.5, 2.6, 1e9):
        histogram.observe(number)
    found = samples(registry.text())
    assert [found["h_bucket", (("le", one),)] for one in ("1", "2.5", "+Inf")] == [2, 4, 6]
    assert found["h_count", ()] == 6
    assert found["h_sum", ()] == pytest.approx(1e9 + 7.2)


def test_every_series_is_explained(metrics: Metrics) -> None:
    for family in text_string_to_metric_families(metrics.text().decode()):
        assert family.documentation, family.name
        assert family.type in ("counter", "gauge", "histogram"), family.name


def test_a_name_is_taken_once() -> None:
    registry = Registry()
    registry.counter("a_total", "Help.")
    with pytest.raises(ValueError, match="a_total"):
        registry.counter("a_total", "Help.")


def test_an_observation_costs_about_a_microsecond(metrics: Metrics) -> None:
    """Generous, for a busy machine: it is 0.3 µs for one series."""
    metrics.request_done("/x", 200, 0.1)
    seconds = min(timeit.repeat(lambda: metrics.request_done("/x", 200, 0.1), number=100, repeat=300)) / 100
    assert seconds < 5e-6


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], list[str]]]:
    """What was logged since it was last asked; afterwards, logging is as it was."""
    loggers = [logging.getLogger(name) for name in (*LOGGERS, "uvicorn.error")]
    before = [(one.handlers, one.level, one.propagate, one.filters) for one in loggers]
    yield lambda: capsys.readouterr().err.splitlines()
    for one, (handlers, level, propagate, filters) in zip(loggers, before, strict=True):
        one.handlers, one.propagate, one.filters = handlers, propagate, filters
        one.setLevel(level)


def test_a_text_line_is_one_line_whatever_is_in_it(lines: Callable[[], list[str]]) -> None:
    set_up_logging("text", "info")
    logging.getLogger("antiphon.x").info("a\nb\r%s", "c\n2026 ERROR forged", extra={"request_id": "r\n1"})
    [line] = lines()
    assert line.endswith(r"INFO    antiphon.x: a\nb\rc\n2026 ERROR forged request_id=r\n1")


def test_a_json_line_is_an_object_with_what_was_given(lines: Callable[[], list[str]]) -> None:
    set_up_logging("json", "info")
    try:
        raise ValueError("boom\ud800")
    except ValueError:
        logging.getLogger("antiphon.x").exception("It\ud800 %s", "failed", extra={"request_id": "r1", "odd": object()})
    [line] = lines()
    told: dict[str, Any] = json.loads(line)
    assert told["level"] == "error"
    assert told["logger"] == "antiphon.x"
    assert told["message"] == "It\\ud800 failed"
    assert told["request_id"] == "r1"
    assert "ValueError: boom" in told["exception"]
    assert told["time"].endswith("Z")


def test_the_level_is_heeded_and_set_up_twice_logs_once(lines: Callable[[], list[str]]) -> None:
    set_up_logging("text", "debug")
    set_up_logging("text", "warning")
    logging.getLogger("antiphon.x").info("quiet")
    logging.getLogger("antiphon.x").warning("loud")
    assert len(lines()) == 1


def test_of_the_client_of_a_database_only_errors_are_heard_in_lines_as_all_others(
    lines: Callable[[], list[str]],
) -> None:
    set_up_logging("json", "info")
    theirs = logging.getLogger("asyncpg.pool")
    theirs.warning("Failed to restore the pool connection floor; retrying")
    theirs.error("a defect")
    (line,) = lines()
    assert json.loads(line)["message"] == "a defect"


def test_of_the_http_server_only_errors_are_heard_and_no_cancelled_tasks(lines: Callable[[], list[str]]) -> None:
    set_up_logging("text", "debug")
    log = logging.getLogger("uvicorn.error")
    log.warning("Invalid HTTP request received.")
    log.error("Exception in ASGI application", exc_info=asyncio.CancelledError())
    assert lines() == []
    log.error("Exception in ASGI application", exc_info=ValueError("boom"))
    assert "ValueError: boom" in lines()
