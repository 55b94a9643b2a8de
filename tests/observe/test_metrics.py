"""Tests the Prometheus metrics, parsed with Prometheus' own parser, and the log formats and levels.

Covers `observe/logs.py`.
"""

import asyncio
import json
import logging
import timeit
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from antiphon.observe import Metrics, set_up_logging
from antiphon.observe.logs import LOGGERS
from antiphon.observe.prometheus import Registry


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("1.2.3")


def parse_samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Parse metrics with Prometheus' own parser into values by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def read_value(metrics: Metrics, name: str, **labels: str) -> float:
    return parse_samples(metrics.text())[name, tuple(sorted(labels.items()))]


@pytest.mark.shows("H.8")
def test_requests_are_counted_by_route_and_status(metrics: Metrics) -> None:
    metrics.record_request("/v1/responses", 200, 0.2)
    metrics.record_request("/v1/responses", 200, 0.4)
    metrics.record_request("/v1/responses", 429, 0.001)
    assert read_value(metrics, "antiphon_requests_total", route="/v1/responses", status="200") == 2
    assert read_value(metrics, "antiphon_requests_total", route="/v1/responses", status="429") == 1
    assert read_value(metrics, "antiphon_request_duration_seconds_count", route="/v1/responses") == 3
    assert read_value(metrics, "antiphon_request_duration_seconds_sum", route="/v1/responses") == pytest.approx(0.601)
    assert read_value(metrics, "antiphon_request_duration_seconds_bucket", route="/v1/responses", le="0.3") == 2


@pytest.mark.shows("H.8")
def test_a_response_is_recorded_with_its_tokens_and_durations(metrics: Metrics) -> None:
    metrics.record_response("completed", (10, 4, 5), ttft=0.5, duration=0.9)
    assert read_value(metrics, "antiphon_responses_total", status="completed") == 1
    assert read_value(metrics, "antiphon_prompt_tokens_total") == 10
    assert read_value(metrics, "antiphon_cached_tokens_total") == 4
    assert read_value(metrics, "antiphon_generation_tokens_total") == 5
    assert read_value(metrics, "antiphon_time_to_first_token_seconds_sum") == 0.5
    assert read_value(metrics, "antiphon_time_per_output_token_seconds_sum") == pytest.approx(0.1)
    assert read_value(metrics, "antiphon_e2e_request_latency_seconds_sum") == 0.9


def test_a_response_without_tokens_records_no_token_latency(metrics: Metrics) -> None:
    metrics.record_response("failed", (10, 4, 0), ttft=None, duration=0.9)
    assert read_value(metrics, "antiphon_time_to_first_token_seconds_count") == 0
    assert read_value(metrics, "antiphon_time_per_output_token_seconds_count") == 0
    metrics.record_response("completed", (10, 4, 1), ttft=0.5, duration=0.9)
    assert read_value(metrics, "antiphon_time_per_output_token_seconds_count") == 0


def test_gauges_are_read_at_scrape_time() -> None:
    registry, odd = Registry(), 'odd "name"\\\n'
    queue: dict[str, float] = {odd: 1}
    registry.gauge("one", "Help.", read=lambda: queue[odd])
    registry.gauge("by_label", "Help.", ("a",), read=lambda: queue)
    registry.gauge("by_labels", "Help.", ("a", "b"), read=lambda: {("x", odd): True})
    registry.gauge("missing", "Help.", read=lambda: None)
    assert parse_samples(registry.text())["one", ()] == 1
    queue[odd] = 5
    assert parse_samples(registry.text()) == {
        ("one", ()): 5,
        ("by_label", (("a", odd),)): 5,
        ("by_labels", (("a", "x"), ("b", odd))): 1,
    }


def test_build_info_and_process_metrics_are_exported(metrics: Metrics) -> None:
    text = metrics.text().decode()
    assert 'antiphon_build_info{version="1.2.3",python="3.' in text
    assert read_value(metrics, "process_cpu_seconds_total") > 0
    assert read_value(metrics, "process_resident_memory_bytes") > 1e6
    assert read_value(metrics, "process_open_fds") > 0
    assert read_value(metrics, "process_start_time_seconds") > 1.7e9


def test_buckets_are_cumulative_with_inclusive_upper_bounds() -> None:
    registry = Registry()
    histogram = registry.histogram("h", "Help.", bounds=(1.0, 2.5))[()]
    for number in (0.0, 1.0, 1.1, 2.5, 2.6, 1e9):
        histogram.observe(number)
    found = parse_samples(registry.text())
    assert [found["h_bucket", (("le", bound),)] for bound in ("1", "2.5", "+Inf")] == [2, 4, 6]
    assert found["h_count", ()] == 6
    assert found["h_sum", ()] == pytest.approx(1e9 + 7.2)


def test_every_metric_family_has_help_and_a_type(metrics: Metrics) -> None:
    for family in text_string_to_metric_families(metrics.text().decode()):
        assert family.documentation, family.name
        assert family.type in ("counter", "gauge", "histogram"), family.name


def test_a_metric_name_cannot_be_registered_twice() -> None:
    registry = Registry()
    registry.counter("a_total", "Help.")
    with pytest.raises(ValueError, match="a_total"):
        registry.counter("a_total", "Help.")


def test_an_observation_costs_about_a_microsecond(metrics: Metrics) -> None:
    """The limit is generous for a busy machine: an observation of one series takes 0.3 µs."""
    metrics.record_request("/x", 200, 0.1)
    seconds = min(timeit.repeat(lambda: metrics.record_request("/x", 200, 0.1), number=100, repeat=300)) / 100
    assert seconds < 5e-6


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], list[str]]]:
    """Return a function that reads the log lines since its last call; the logging setup is restored afterwards."""
    loggers = [logging.getLogger(name) for name in (*LOGGERS, "uvicorn.error")]
    before = [(logger.handlers, logger.level, logger.propagate, logger.filters) for logger in loggers]
    yield lambda: capsys.readouterr().err.splitlines()
    for logger, (handlers, level, propagate, filters) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate, logger.filters = handlers, propagate, filters
        logger.setLevel(level)


def test_a_text_log_entry_is_always_a_single_line(lines: Callable[[], list[str]]) -> None:
    set_up_logging("text", "info")
    logging.getLogger("antiphon.x").info("a\nb\r%s", "c\n2026 ERROR forged", extra={"request_id": "r\n1"})
    [line] = lines()
    assert line.endswith(r"INFO    antiphon.x: a\nb\rc\n2026 ERROR forged request_id=r\n1")


def test_a_json_log_line_holds_all_fields(lines: Callable[[], list[str]]) -> None:
    set_up_logging("json", "info")
    try:
        raise ValueError("boom\ud800")
    except ValueError:
        logging.getLogger("antiphon.x").exception("It\ud800 %s", "failed", extra={"request_id": "r1", "odd": object()})
    [line] = lines()
    entry: dict[str, Any] = json.loads(line)
    assert entry["level"] == "error"
    assert entry["logger"] == "antiphon.x"
    assert entry["message"] == "It\\ud800 failed"
    assert entry["request_id"] == "r1"
    assert "ValueError: boom" in entry["exception"]
    assert entry["time"].endswith("Z")


def test_the_log_level_applies_and_repeated_setup_logs_once(lines: Callable[[], list[str]]) -> None:
    set_up_logging("text", "debug")
    set_up_logging("text", "warning")
    logging.getLogger("antiphon.x").info("quiet")
    logging.getLogger("antiphon.x").warning("loud")
    assert len(lines()) == 1


def test_only_errors_of_the_database_client_are_logged_in_the_same_format(
    lines: Callable[[], list[str]],
) -> None:
    set_up_logging("json", "info")
    logger = logging.getLogger("asyncpg.pool")
    logger.warning("Failed to restore the pool connection floor; retrying")
    logger.error("a defect")
    (line,) = lines()
    assert json.loads(line)["message"] == "a defect"


def test_only_errors_of_the_http_server_are_logged_except_cancelled_tasks(lines: Callable[[], list[str]]) -> None:
    set_up_logging("text", "debug")
    log = logging.getLogger("uvicorn.error")
    log.warning("Invalid HTTP request received.")
    log.error("Exception in ASGI application", exc_info=asyncio.CancelledError())
    assert lines() == []
    log.error("Exception in ASGI application", exc_info=ValueError("boom"))
    assert "ValueError: boom" in lines()
