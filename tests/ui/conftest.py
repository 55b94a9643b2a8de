"""A browser for all tests of the page, and a server with scripted replies."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chromium import Browser, Page, run_browser
from tests.support.server_process import ServerProcess, pytest_runtest_makereport, run_server

__all__ = ["pytest_runtest_makereport"]

REPLIES = Path(__file__).with_name("replies.toml")


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with run_browser() as running:
        yield running


@pytest.fixture(scope="package")
def server() -> Iterator[ServerProcess]:
    with run_server(
        "--engine", "fake", "--fake-script", str(REPLIES), "--fake-rate", "200", "--keep-traces", "50"
    ) as running:
        yield running


@pytest.fixture
def page(browser: Browser, server: ServerProcess) -> Iterator[Page]:
    """The page of the server. The test fails if the page complains about anything or loads from another host."""
    with browser.new_page() as opened:
        opened.set_size(1200)
        opened.open(f"{server.url}/")
        opened.wait_for("document.querySelector('#model option')")
        yield opened
        opened.check(server.url)
