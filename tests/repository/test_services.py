"""The servers that tests stand on: they end with the test run, however that ends; who needs one is skipped without."""

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

_KILLED = """
import os, signal
from tests.support.services import postgres_server, redis_server
with postgres_server() as postgres, redis_server() as redis:
    print(postgres.socket, redis.port, postgres.folder, redis.folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.needs("postgresql", "redis")
def test_a_server_ends_with_whoever_started_it_even_by_a_kill() -> None:
    killed = subprocess.run([sys.executable, "-c", _KILLED], capture_output=True, text=True, timeout=120, check=False)
    path, port, *folders = killed.stdout.split()
    deadline = time.monotonic() + 60
    while _answers(socket.AF_UNIX, path) or _answers(socket.AF_INET, ("127.0.0.1", int(port))):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    while left := [folder for folder in folders if Path(folder).exists()]:  # they put away their own files meanwhile
        assert time.monotonic() < deadline
        shutil.rmtree(left[0], ignore_errors=True)


def _answers(family: socket.AddressFamily, address: str | tuple[str, int]) -> bool:
    with socket.socket(family) as client:
        return client.connect_ex(address) == 0


def test_who_asks_for_a_server_needs_it(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.plugins.services.SERVICES", {"postgresql": lambda: None, "redis": lambda: None})
    monkeypatch.delenv("REQUIRE_SERVICES", raising=False)
    pytester.makeini("[pytest]\nmarkers =\n    needs(*services)\n")
    pytester.makepyfile("def test_one(postgres_url): pass\n\ndef test_other(redis_url): pass\n")
    result = pytester.runpytest_inprocess("-pno:cacheprovider", "-ptests.plugins.services")
    result.assert_outcomes(skipped=2)
