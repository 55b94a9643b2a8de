"""What every test stands on: the asyncio backend, hypothesis' bounds, and the house plugins."""

import os

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester", "tests.plugins.services", "tests.plugins.selection", "tests.plugins.requirements"]

# Examples are bounded and have no deadline of their own: the machine may be busy, and pytest-timeout watches.
settings.register_profile("here", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("here"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") or os.environ.get("REQUIRE_SERVICES") else "here")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
