"""The services that tests use: they end with the test run even if it is killed, and tests that need a missing one are
skipped.
"""

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

_KILLED_SCRIPT = """
import os, signal
from tests.support.services import postgres_server, redis_server
with postgres_server() as postgres, redis_server() as redis:
    print(postgres.socket, redis.port, postgres.folder, redis.folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.needs("postgresql", "redis")
def test_the_services_end_when_their_test_run_is_killed() -> None:
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED_SCRIPT], capture_output=True, text=True, timeout=120, check=False
    )
    path, port, *folders = killed.stdout.split()
    deadline = time.monotonic() + 60
    while _is_listening(socket.AF_UNIX, path) or _is_listening(socket.AF_INET, ("127.0.0.1", int(port))):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    # the services delete their own files meanwhile
    while remaining := [folder for folder in folders if Path(folder).exists()]:
        assert time.monotonic() < deadline
        shutil.rmtree(remaining[0], ignore_errors=True)


def _is_listening(family: socket.AddressFamily, address: str | tuple[str, int]) -> bool:
    with socket.socket(family) as client:
        return client.connect_ex(address) == 0


def test_a_test_with_a_service_fixture_is_skipped_without_the_service(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.plugins.services.SERVICES", {"postgresql": lambda: None, "redis": lambda: None})
    monkeypatch.delenv("REQUIRE_SERVICES", raising=False)
    pytester.makeini("[pytest]\nmarkers =\n    needs(*services)\n")
    pytester.makepyfile("def test_one(postgres_url): pass\n\ndef test_other(redis_url): pass\n")
    result = pytester.runpytest_inprocess("-pno:cacheprovider", "-ptests.plugins.services")
    result.assert_outcomes(skipped=2)
