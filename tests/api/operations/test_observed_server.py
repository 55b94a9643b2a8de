"""A server process with all observability flags: logs and traces agree, and a hanging collector delays no stop."""

import json
from pathlib import Path

from tests.support.otlp_collector import run_collector
from tests.support.server_process import run_server


def test_the_log_the_access_log_and_the_traces_have_the_same_ids(tmp_path: Path) -> None:
    access = tmp_path / "access"
    flags = ("--engine", "fake", "--log-format", "json", "--access-log", str(access), "--keep-traces", "5")
    with run_collector() as collector:
        with run_server(*flags, "--otlp-endpoint", collector.url) as server:
            status, body = server.post({"model": "fake", "input": "hi", "user": "u-1"})
            assert status == 200
            made = json.loads(body)["id"]
            assert json.loads(server.get(f"/v1/responses/{made}/trace")[1])["id"] == made
            output = server.read_output()
        spans = collector.wait_for("POST /v1/responses", "invoke_agent", "chat fake")
    [logged] = [json.loads(line) for line in output.splitlines() if b"A request was accepted" in line]
    lines = [json.loads(line) for line in access.read_text().splitlines()]
    [line] = [line for line in lines if line["route"] == "/v1/responses"]
    assert line["response_id"] == made == logged["response_id"]
    assert line["trace_id"] == spans["chat fake"].trace == logged["trace_id"]
    assert line["request_id"] == logged["request_id"]


def test_the_server_stops_in_time_while_its_collector_hangs() -> None:
    with run_collector() as collector:
        collector.unblocked.clear()
        with run_server("--engine", "fake", "--otlp-endpoint", collector.url) as server:
            assert server.post({"model": "fake", "input": "hi"})[0] == 200
            server.process.terminate()
            assert server.process.wait(40) == 0  # the exporter's own timeout would be a minute
