"""A real server with everything on: its flags do what they say, and it stops in time though its collector hangs."""

import json
from pathlib import Path

from tests.support.otlp_collector import collecting
from tests.support.server_process import serving


def test_flags_make_a_server_that_is_seen_from_all_sides(tmp_path: Path) -> None:
    access = tmp_path / "access"
    flags = ("--engine", "fake", "--log-format", "json", "--access-log", str(access), "--keep-traces", "5")
    with collecting() as collector:
        with serving(*flags, "--otlp-endpoint", collector.url) as server:
            status, body = server.post({"model": "fake", "input": "hi", "user": "u-1"})
            assert status == 200
            made = json.loads(body)["id"]
            assert json.loads(server.get(f"/v1/responses/{made}/trace")[1])["id"] == made
            output = server.output()
        spans = collector.wait_for("POST /v1/responses", "invoke_agent", "chat fake")
    [logged] = [json.loads(line) for line in output.splitlines() if b"A request was accepted" in line]
    lines = [json.loads(line) for line in access.read_text().splitlines()]
    [line] = [line for line in lines if line["route"] == "/v1/responses"]
    assert line["response_id"] == made == logged["response_id"]
    assert line["trace_id"] == spans["chat fake"].trace == logged["trace_id"]
    assert line["request_id"] == logged["request_id"]


def test_it_stops_in_time_though_its_collector_hangs() -> None:
    with collecting() as collector:
        collector.answers.clear()
        with serving("--engine", "fake", "--otlp-endpoint", collector.url) as server:
            assert server.post({"model": "fake", "input": "hi"})[0] == 200
            server.process.terminate()
            assert server.process.wait(40) == 0  # its collector would have it wait for a minute
