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


SKIPPING = {
    "call": "def test_one(): pytest.skip('no luck')",
    "marker": "@pytest.mark.skipif(True, reason='no luck')\ndef test_one(): pass",
    "module": "pytest.skip('no luck', allow_module_level=True)",
    "import": "pytest.importorskip('no_such_package')",
    "expected failure": "@pytest.mark.xfail\ndef test_one(): assert False",
}


@pytest.mark.parametrize("body", SKIPPING.values(), ids=SKIPPING)
def test_every_kind_of_skip_fails_where_services_are_required(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    monkeypatch.setenv("REQUIRE_SERVICES", "1")
    pytester.makepyfile(f"import pytest\n\n{body}\n")
    result = pytester.runpytest_inprocess("-pno:cacheprovider", "-ptests.plugins.services")
    assert result.ret in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
    result.stdout.fnmatch_lines(["*REQUIRE_SERVICES=1 permits only skips of these kinds*"])
    monkeypatch.delenv("REQUIRE_SERVICES")
    assert pytester.runpytest_inprocess("-pno:cacheprovider", "-ptests.plugins.services").parseoutcomes().keys() & {
        "skipped",
        "xfailed",
    }


def test_skips_of_exempt_kinds_stay_where_services_are_required(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUIRE_SERVICES", "1")
    pytester.makepyfile(
        "import pytest\n\ndef test_one(): pytest.skip('permission: this user may not mount anything')\n"
    )
    result = pytester.runpytest_inprocess("-pno:cacheprovider", "-ptests.plugins.services")
    result.assert_outcomes(skipped=1)


def test_a_test_with_a_service_fixture_is_skipped_without_the_service(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.plugins.services.SERVICES", {"postgresql": lambda: None, "redis": lambda: None})
    monkeypatch.delenv("REQUIRE_SERVICES", raising=False)
    pytester.makeini("[pytest]\nmarkers =\n    needs(*services)\n")
    pytester.makepyfile("def test_one(postgres_url): pass\n\ndef test_other(redis_url): pass\n")
    result = pytester.runpytest_inprocess("-pno:cacheprovider", "-ptests.plugins.services")
    result.assert_outcomes(skipped=2)


def test_a_test_of_a_real_engine_runs_only_if_it_is_selected(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers =\n    real_engine\n")
    pytester.makepyfile("import pytest\n\n@pytest.mark.real_engine\ndef test_one(): pass\n")
    flags = ("-pno:cacheprovider", "-ptests.plugins.services")
    pytester.runpytest_inprocess(*flags).assert_outcomes(skipped=1)
    pytester.runpytest_inprocess(*flags, "-m", "real_engine").assert_outcomes(passed=1)
