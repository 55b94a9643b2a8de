"""Several worker processes on one port: who gets connections, what becomes of one that dies, how all of them end."""

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

from tests.cli.process import run
from tests.support.server_process import Live, serving
from tests.support.services import Postgres

DEADLINE = 30.0
SLOW = ("--engine", "fake", "--fake-tokens", "30", "--fake-rate", "30")  # a second each
SLOWER = ("--engine", "fake", "--fake-tokens", "150", "--fake-rate", "30", "--lease-seconds", "1")  # five
UP = re.compile(r"worker (\d+) is up, process (\d+)")


def until(found: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + DEADLINE
    while not (value := found()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return value


def born(live: Live) -> list[tuple[int, int]]:
    """Number and process of every worker that ever was up, in their order."""
    return [(int(number), int(process)) for number, process in UP.findall(live.output().decode())]


@contextlib.contextmanager
def several(count: int, *flags: str) -> Iterator[Live]:
    """All of them up."""
    with serving("--workers", str(count), *flags) as live:
        until(lambda: len(born(live)) == count, "not all workers came up")
        yield live


def told(live: Live) -> dict[str, float]:
    """What whichever worker says of all of them."""
    status, text = live.get("/metrics")
    assert status == 200
    lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
    assert len({line.rpartition(" ")[0] for line in lines}) == len(lines), "each series once"
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


PROBES = 'antiphon_requests_total{route="/health",status="200"}'


@pytest.mark.shows("H.8")
def test_connections_are_spread_over_the_workers_and_each_of_them_tells_of_all(tmp_path: Path) -> None:
    with several(2, "--engine", "fake", "--store", str(tmp_path / "store.db")) as live:
        for _ in range(200):
            assert live.get("/health")[0] == 200
        until(lambda: told(live).get(PROBES) == 200, "some were not counted")
        found = told(live)
    assert min(found[f'antiphon_worker_requests_total{{worker="{number}"}}'] for number in (1, 2)) >= 60
    assert found["antiphon_num_requests_running"] == 0
    assert found['antiphon_engine_up{engine="fake",model="fake"}'] == 1
    assert {f'process_open_fds{{worker="{number}"}}' for number in (1, 2)} < {*found}


def test_what_was_counted_outlives_a_killed_worker(tmp_path: Path) -> None:
    with several(2, "--engine", "fake", "--store", str(tmp_path / "store.db")) as live:
        for _ in range(50):
            live.get("/health")
        until(lambda: told(live).get(PROBES) == 50, "some were not counted")
        number, process = born(live)[0]
        os.kill(process, signal.SIGKILL)
        seen = [50.0]
        while [one for one, _ in born(live)].count(number) < 2:
            with contextlib.suppress(OSError, http.client.HTTPException):  # by the one that died
                seen.append(told(live)[PROBES])
        for _ in range(20):
            seen.append(told(live)[PROBES])
        assert {*seen} == {50}
        assert f'process_cpu_seconds_total{{worker="{number}"}}' in told(live)


@pytest.mark.shows("H.3")
def test_workers_hold_their_clients_to_limits_together(tmp_path: Path) -> None:
    limit = ("--quota-requests-per-minute", "100")
    with several(2, "--engine", "fake", "--store", str(tmp_path / "store.db"), *limit) as live:
        began = time.monotonic()
        assert {live.post({"model": "fake", "input": "hi"})[0] for _ in range(50)} == {200}
        until(lambda: abs(remaining(live) - min(100, 50 + filled(began))) <= 6, "the headers are not true")
        assert max(abs(remaining(live) - min(100, 50 + filled(began))) for _ in range(10)) <= 12, "whoever is asked"
        statuses = Counter(live.post({"model": "fake", "input": "hi"})[0] for _ in range(100))
        assert 40 <= statuses[200] <= 50 + filled(began) + 1
        assert statuses[200] + statuses[429] == 100
        assert told(live)["antiphon_quotas_shared"] == 1
        number, process = born(live)[0]
        os.kill(process, signal.SIGKILL)
        until(lambda: [one for one, _ in born(live)].count(number) == 2, "nobody came in its place")
        again = Counter(live.post({"model": "fake", "input": "hi"})[0] for _ in range(40))
        assert 50 + statuses[200] + again[200] <= 100 + filled(began) + 1, "who comes later has no more"


def filled(began: float) -> float:
    """What has come back of a hundred a minute, of what was taken."""
    return (time.monotonic() - began) * 100 / 60


def remaining(live: Live) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=DEADLINE)
    with contextlib.closing(connection):
        connection.request("GET", "/v1/models")
        return int(connection.getresponse().headers["x-ratelimit-remaining-requests"])


@pytest.mark.shows("B.2")
def test_what_one_worker_keeps_every_other_one_reads(postgres: Postgres) -> None:
    with postgres.database() as url, several(2, "--engine", "fake", "--store", url) as live:
        status, made = live.post({"model": "fake", "input": "hi"})
        assert status == 200
        path = f"/v1/responses/{json.loads(made)['id']}"
        assert {live.get(path) for _ in range(20)} == {(200, made)}


@pytest.mark.shows("B.7")
def test_a_killed_worker_is_replaced_and_its_background_work_taken_over(tmp_path: Path) -> None:
    with several(2, *SLOWER, "--store", str(tmp_path / "store.db")) as live:
        status, made = live.post({"model": "fake", "input": "hi", "background": True})
        assert status == 200
        path = f"/v1/responses/{json.loads(made)['id']}"
        number = until(lambda: who_runs(live), "nobody runs it")
        os.kill(dict(born(live))[number], signal.SIGKILL)
        until(lambda: [one for one, _ in born(live)].count(number) == 2, "nobody came in its place")
        ended = until(lambda: ended_status(live, path), "it did not end")
        assert ended == "completed"
        assert live.process.poll() is None


def who_runs(live: Live) -> int | None:
    found = re.search(rb'antiphon_leases_held\{worker="(\d)"\} 1', live.get("/metrics")[1])
    return int(found[1]) if found else None


def ended_status(live: Live, path: str) -> str | None:
    with contextlib.suppress(OSError, http.client.HTTPException):  # who had just been accepted by the one that died
        status: str = json.loads(live.get(path)[1])["status"]
        return status if status not in ("queued", "in_progress") else None
    return None


@pytest.mark.shows("H.10")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_parent_ends_all_and_cuts_no_stream(tmp_path: Path, number: signal.Signals) -> None:
    with several(2, *SLOW, "--store", str(tmp_path / "store.db")) as live, contextlib.ExitStack() as opened:
        streams = [stream(live, opened) for _ in range(6)]
        workers = born(live)
        live.process.send_signal(number)
        assert live.process.wait(DEADLINE) == 0
        for one in streams:
            assert b"event: response.completed" in one.read()
        assert not any(alive(process) for _, process in workers)
        assert b"Traceback" not in live.output()


def stream(live: Live, opened: contextlib.ExitStack) -> http.client.HTTPResponse:
    """One that has begun."""
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=DEADLINE)
    opened.enter_context(contextlib.closing(connection))
    body = json.dumps({"model": "fake", "input": "hi", "stream": True})
    connection.request("POST", "/v1/responses", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200
    return answer


def test_a_sighup_has_every_worker_read_the_settings_again_also_one_that_comes_later(tmp_path: Path) -> None:
    file = tmp_path / "antiphon.toml"
    file.write_text(f'engine = "fake"\nstore = "{tmp_path}/store.db"\n')
    with several(2, "--config", str(file)) as live:
        file.write_text(f'engine = "fake"\nstore = "{tmp_path}/store.db"\nalias = ["fast=fake"]\n')
        live.process.send_signal(signal.SIGHUP)
        until(lambda: live.output().count(b"The settings were read again") == 2, "not everybody read them")
        assert {live.post({"model": "fast", "input": "hi"})[0] for _ in range(8)} == {200}
        assert b"restart is needed" not in live.output()
        number, process = born(live)[0]
        os.kill(process, signal.SIGKILL)
        until(lambda: [one for one, _ in born(live)].count(number) == 2, "nobody came in its place")
        until(lambda: live.output().count(b"The settings were read again") == 3, "who came later did not read them")


def test_workers_whose_parent_is_killed_stop_by_themselves(tmp_path: Path) -> None:
    with several(2, "--engine", "fake", "--store", str(tmp_path / "store.db")) as live:
        workers = born(live)
        live.process.kill()
        until(lambda: not any(alive(process) for _, process in workers), "they live on")
        with socket.create_server(("127.0.0.1", live.port)):
            pass


def test_a_worker_that_cannot_start_is_tried_again_with_growing_pauses(tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    script.write_text(good := '[[reply]]\nsteps = [{ say = "hello" }]\n')
    with several(2, "--engine", "fake", "--fake-script", str(script), "--store", str(tmp_path / "store.db")) as live:
        number, process = born(live)[0]
        script.write_text("nonsense")
        os.kill(process, signal.SIGKILL)
        pauses = re.compile(r"worker \d ended \((.+)\) and is replaced in (\d\.\d) s")
        until(lambda: len(pauses.findall(live.output().decode())) >= 3, "nobody tried")
        found = pauses.findall(live.output().decode())[:3]
        assert [pause for _, pause in found] == ["0.2", "0.4", "0.8"]
        assert found[0][0] == "code -9"
        assert "script.toml" in found[1][0]
        script.write_text(good)
        until(lambda: [one for one, _ in born(live)].count(number) == 2, "nobody came in its place")


@pytest.mark.shows("I.9")
@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--store", "memory", "--engine", "fake"], "Several workers need a store that they share, a file or "),
        (["--disable-store", "--engine", "fake"], "Several workers need a store that they share, a file or "),
        ([], "Each of several workers would load the model into its own memory: "),
        (["--engine", "fake", "--store", "."], "The store . is a folder; --store takes a file."),
        (["--engine", "fake", "--fake-script", "no.toml"], "The script no.toml cannot be read: "),
    ],
)
def test_what_keeps_workers_from_starting_is_one_sentence(tmp_path: Path, flags: list[str], sentence: str) -> None:
    ran = run(tmp_path, "serve", "--workers", "3", "--port", "0", *flags)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert ran.stderr.startswith(f"antiphon: {sentence}")


@pytest.mark.shows("I.9")
def test_a_port_that_another_server_of_this_user_shares_is_in_use(tmp_path: Path) -> None:
    with several(2, "--engine", "fake", "--store", str(tmp_path / "store.db")) as live:
        other = ("--engine", "fake", "--store", "other.db", "--port", str(live.port))
        for flags in ((), ("--workers", "2")):
            ran = run(tmp_path, "serve", *other, *flags)
            assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
            assert f"Port {live.port} on 127.0.0.1 is in use" in ran.stderr
