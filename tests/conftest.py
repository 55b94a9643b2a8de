"""Setup for all tests: the asyncio backend, the Hypothesis profiles, and the plugins of this repository."""

import os

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = [
    "tests.plugins.line_coverage",  # first: it measures only modules that are imported after it
    "pytester",
    "tests.plugins.services",
    "tests.plugins.selection",
    "tests.plugins.requirements",
]

# Examples are limited and have no deadline of their own, since the machine may be busy; pytest-timeout limits each
# test.
settings.register_profile("here", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("here"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") or os.environ.get("REQUIRE_SERVICES") else "here")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
