"""Setup for all tests: the asyncio backend and the plugins of this repository."""

import gc

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


def pytest_collection_finish() -> None:
    """Exempt what has been imported from garbage collections: each would scan 300,000 objects that never change."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
