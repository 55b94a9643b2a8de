"""Setup for all tests: the asyncio backend and the plugins of this repository."""

import pytest

pytest_plugins = [
    "tests.plugins.line_coverage",  # first: it measures only modules that are imported after it
    "pytester",
    "tests.plugins.seeds",
    "tests.plugins.services",
    "tests.plugins.selection",
    "tests.plugins.requirements",
    "tests.plugins.client_matrix",
    "tests.plugins.memory_store",
    "tests.plugins.shallow_model",
]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
