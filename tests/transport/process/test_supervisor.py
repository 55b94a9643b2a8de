"""Several worker processes on one port: distribution of connections, shared state, replacement of workers, and
shutdown.
"""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.process import run_antiphon
from tests.support.server_process import ServerProcess, run_server
from tests.support.services import Postgres

DEADLINE = 30.0
SLOW = ("--engine", "fake", "--fake-tokens", "30", "--fake-rate", "30")  # one second per response
# five seconds per response
SLOWER = ("--engine", "fake", "--fake-tokens", "150", "--fake-rate", "30", "--lease-seconds", "1")
UP = re.compile(r"worker (\d+) is up, process (\d+)")


def wait_until(condition: Callable[[], Any], failure: str) -> Any:
    """Poll until the condition is truthy, and return its value."""
    deadline = time.monotonic() + DEADLINE
    while not (value := condition()):
        assert time.monotonic() < deadline, failure
        time.sleep(0.02)
    return value


def list_started(live: ServerProcess) -> list[tuple[int, int]]:
    """Return number and process id of every worker that was ever up, in order."""
    return [(int(number), int(process)) for number, process in UP.findall(live.read_output().decode())]


@contextlib.contextmanager
def run_workers(count: int, *flags: str) -> Iterator[ServerProcess]:
    """Run a server, and wait until all of its workers are up."""
    with run_server("--workers", str(count), *flags) as live:
        wait_until(lambda: len(list_started(live)) == count, "not all workers came up")
        yield live


def read_metrics(live: ServerProcess) -> dict[str, float]:
    """Return the metrics of all workers, as any one of them reports them."""
    status, text = live.get("/metrics")
    assert status == 200
    lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
    assert len({line.rpartition(" ")[0] for line in lines}) == len(lines), "each series once"
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


HEALTH_REQUESTS = 'antiphon_requests_total{route="/health",status="200"}'


@pytest.mark.shows("H.8")
def test_connections_are_spread_over_workers_and_each_reports_the_metrics_of_all(tmp_path: Path) -> None:
    with run_workers(2, "--engine", "fake", "--store", str(tmp_path / "store.db")) as live:
        for _ in range(200):
            assert live.get("/health")[0] == 200
        wait_until(lambda: read_metrics(live).get(HEALTH_REQUESTS) == 200, "not all requests were counted")
        found = read_metrics(live)
    assert min(found[f'antiphon_worker_requests_total{{worker="{number}"}}'] for number in (1, 2)) >= 60
    assert found["antiphon_num_requests_running"] == 0
    assert found['antiphon_engine_up{engine="fake",model="fake"}'] == 1
    assert {f'process_open_fds{{worker="{number}"}}' for number in (1, 2)} < {*found}


def test_counters_survive_a_killed_worker(tmp_path: Path) -> None:
    with run_workers(2, "--engine", "fake", "--store", str(tmp_path / "store.db")) as live:
        for _ in range(50):
            live.get("/health")
        wait_until(lambda: read_metrics(live).get(HEALTH_REQUESTS) == 50, "not all requests were counted")
        number, process = list_started(live)[0]
        os.kill(process, signal.SIGKILL)
        seen = [50.0]
        while [one for one, _ in list_started(live)].count(number) < 2:
            with contextlib.suppress(OSError, http.client.HTTPException):  # accepted by the worker that died
                seen.append(read_metrics(live)[HEALTH_REQUESTS])
        for _ in range(20):
            seen.append(read_metrics(live)[HEALTH_REQUESTS])
        assert {*seen} == {50}
        assert f'process_cpu_seconds_total{{worker="{number}"}}' in read_metrics(live)


@pytest.mark.shows("H.3")
def test_workers_share_rate_limits(tmp_path: Path) -> None:
    limit = ("--quota-requests-per-minute", "100")
    with run_workers(2, "--engine", "fake", "--store", str(tmp_path / "store.db"), *limit) as live:
        began = time.monotonic()
        assert {live.post({"model": "fake", "input": "hi"})[0] for _ in range(50)} == {200}
        wait_until(
            lambda: abs(read_remaining(live) - min(100, 50 + count_refilled(began))) <= 6,
            "the headers do not match the requests",
        )
        assert max(abs(read_remaining(live) - min(100, 50 + count_refilled(began))) for _ in range(10)) <= 12, (
            "of one worker"
        )
        statuses = Counter(live.post({"model": "fake", "input": "hi"})[0] for _ in range(100))
        assert 40 <= statuses[200] <= 50 + count_refilled(began) + 1
        assert statuses[200] + statuses[429] == 100
        assert read_metrics(live)["antiphon_quotas_shared"] == 1
        number, process = list_started(live)[0]
        os.kill(process, signal.SIGKILL)
        wait_until(lambda: [one for one, _ in list_started(live)].count(number) == 2, "the worker was not replaced")
        again = Counter(live.post({"model": "fake", "input": "hi"})[0] for _ in range(40))
        assert 50 + statuses[200] + again[200] <= 100 + count_refilled(began) + 1, (
            "the replacement granted too many requests"
        )


def count_refilled(began: float) -> float:
    """Return how many requests have been refilled since `began`, at a hundred per minute."""
    return (time.monotonic() - began) * 100 / 60


def read_remaining(live: ServerProcess) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=DEADLINE)
    with contextlib.closing(connection):
        connection.request("GET", "/v1/models")
        return int(connection.getresponse().headers["x-ratelimit-remaining-requests"])


@pytest.mark.shows("B.2")
def test_a_response_stored_by_one_worker_is_readable_by_all(postgres: Postgres) -> None:
    with postgres.temporary_database() as url, run_workers(2, "--engine", "fake", "--store", url) as live:
        status, made = live.post({"model": "fake", "input": "hi"})
        assert status == 200
        path = f"/v1/responses/{json.loads(made)['id']}"
        assert {live.get(path) for _ in range(20)} == {(200, made)}


@pytest.mark.shows("B.7")
def test_a_killed_worker_is_replaced_and_its_background_work_taken_over(tmp_path: Path) -> None:
    with run_workers(2, *SLOWER, "--store", str(tmp_path / "store.db")) as live:
        status, made = live.post({"model": "fake", "input": "hi", "background": True})
        assert status == 200
        path = f"/v1/responses/{json.loads(made)['id']}"
        number = wait_until(lambda: find_runner(live), "no worker runs it")
        os.kill(dict(list_started(live))[number], signal.SIGKILL)
        wait_until(lambda: [one for one, _ in list_started(live)].count(number) == 2, "the worker was not replaced")
        final_status = wait_until(lambda: read_final_status(live, path), "the response did not end")
        assert final_status == "completed"
        assert live.process.poll() is None


def find_runner(live: ServerProcess) -> int | None:
    found = re.search(rb'antiphon_leases_held\{worker="(\d)"\} 1', live.get("/metrics")[1])
    return int(found[1]) if found else None


def read_final_status(live: ServerProcess, path: str) -> str | None:
    with contextlib.suppress(OSError, http.client.HTTPException):  # accepted by the worker that died
        status: str = json.loads(live.get(path)[1])["status"]
        return status if status not in ("queued", "in_progress") else None
    return None


@pytest.mark.shows("H.10")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_parent_stops_all_workers_and_cuts_off_no_stream(
    tmp_path: Path, number: signal.Signals
) -> None:
    with run_workers(2, *SLOW, "--store", str(tmp_path / "store.db")) as live, contextlib.ExitStack() as opened:
        streams = [open_stream(live, opened) for _ in range(6)]
        workers = list_started(live)
        live.process.send_signal(number)
        assert live.process.wait(DEADLINE) == 0
        for one in streams:
            assert b"event: response.completed" in one.read()
        assert not any(is_alive(process) for _, process in workers)
        assert b"Traceback" not in live.read_output()


def open_stream(live: ServerProcess, opened: contextlib.ExitStack) -> http.client.HTTPResponse:
    """Open a stream, and wait for its head."""
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=DEADLINE)
    opened.enter_context(contextlib.closing(connection))
    body = json.dumps({"model": "fake", "input": "hi", "stream": True})
    connection.request("POST", "/v1/responses", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200
    return answer


def test_a_sighup_reloads_the_settings_of_every_worker_and_of_replacements(tmp_path: Path) -> None:
    file = tmp_path / "antiphon.toml"
    file.write_text(f'engine = "fake"\nstore = "{tmp_path}/store.db"\n')
    with run_workers(2, "--config", str(file)) as live:
        file.write_text(f'engine = "fake"\nstore = "{tmp_path}/store.db"\nalias = ["fast=fake"]\n')
        live.process.send_signal(signal.SIGHUP)
        wait_until(lambda: live.read_output().count(b"Settings reloaded") == 2, "not all workers reloaded")
        assert {live.post({"model": "fast", "input": "hi"})[0] for _ in range(8)} == {200}
        assert b"need a restart" not in live.read_output()
        number, process = list_started(live)[0]
        os.kill(process, signal.SIGKILL)
        wait_until(lambda: [one for one, _ in list_started(live)].count(number) == 2, "the worker was not replaced")
        wait_until(lambda: live.read_output().count(b"Settings reloaded") == 3, "the replacement did not reload")


def test_workers_whose_parent_is_killed_stop_by_themselves(tmp_path: Path) -> None:
    with run_workers(2, "--engine", "fake", "--store", str(tmp_path / "store.db")) as live:
        workers = list_started(live)
        live.process.kill()
        wait_until(lambda: not any(is_alive(process) for _, process in workers), "the workers are still alive")
        with socket.create_server(("127.0.0.1", live.port)):
            pass


def test_a_worker_that_cannot_start_is_retried_with_growing_pauses(tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    script.write_text(good := '[[reply]]\nsteps = [{ say = "hello" }]\n')
    with run_workers(
        2, "--engine", "fake", "--fake-script", str(script), "--store", str(tmp_path / "store.db")
    ) as live:
        number, process = list_started(live)[0]
        script.write_text("nonsense")
        os.kill(process, signal.SIGKILL)
        pauses = re.compile(r"worker \d ended \((.+)\) and is replaced in (\d\.\d) s")
        wait_until(lambda: len(pauses.findall(live.read_output().decode())) >= 3, "the worker was not restarted")
        found = pauses.findall(live.read_output().decode())[:3]
        assert [pause for _, pause in found] == ["0.2", "0.4", "0.8"]
        assert found[0][0] == "code -9"
        assert "script.toml" in found[1][0]
        script.write_text(good)
        wait_until(lambda: [one for one, _ in list_started(live)].count(number) == 2, "the worker was not replaced")


@pytest.mark.shows("I.9")
@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--store", "memory", "--engine", "fake"], "Several workers need a store that they share: a file or "),
        (["--disable-store", "--engine", "fake"], "Several workers need a store that they share: a file or "),
        ([], "Each of several workers would load the model into its own memory: "),
        (["--engine", "fake", "--store", "."], "The store . is a folder; --store takes a file."),
        (["--engine", "fake", "--fake-script", "no.toml"], "The script no.toml cannot be read: "),
    ],
)
def test_a_startup_error_of_workers_is_one_sentence(tmp_path: Path, flags: list[str], sentence: str) -> None:
    ran = run_antiphon(tmp_path, "serve", "--workers", "3", "--port", "0", *flags)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert ran.stderr.startswith(f"antiphon: {sentence}")


@pytest.mark.shows("I.9")
def test_a_port_of_another_server_is_reported_as_in_use(tmp_path: Path) -> None:
    with run_workers(2, "--engine", "fake", "--store", str(tmp_path / "store.db")) as live:
        other = ("--engine", "fake", "--store", "other.db", "--port", str(live.port))
        for flags in ((), ("--workers", "2")):
            ran = run_antiphon(tmp_path, "serve", *other, *flags)
            assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
            assert f"Port {live.port} on 127.0.0.1 is in use" in ran.stderr
