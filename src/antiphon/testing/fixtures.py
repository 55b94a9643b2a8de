"""Fixtures of pytest. A conftest.py names this module: `pytest_plugins = ["antiphon.testing.fixtures"]`."""

from collections.abc import Iterator

import pytest

from antiphon.testing.server import ServerProcess, server


@pytest.fixture(scope="session")
def antiphon_server() -> Iterator[ServerProcess]:
    """A server with the fake engine, for all tests of the run: its responses are stored in memory."""
    with server() as running:
        yield running
