"""A browser for all tests of the page, a server with scripted replies, and one with something in every view."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.chromium import Browser, Page, run_browser
from tests.support.server_process import ServerProcess, pytest_runtest_makereport, run_server
from tests.tools.mcp.sum_server import run_sum_server

__all__ = ["pytest_runtest_makereport"]

REPLIES = Path(__file__).with_name("replies.toml")
SCRIPTED = ("--engine", "fake", "--fake-script", str(REPLIES), "--fake-rate", "200", "--keep-traces", "50")
ADMIN_KEY = "sk-admin"


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with run_browser() as running:
        yield running


@pytest.fixture(scope="package")
def server() -> Iterator[ServerProcess]:
    with run_server(*SCRIPTED) as running:
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


@contextmanager
def run_filled_server(folder: Path) -> Iterator[ServerProcess]:
    """Run a server with keys, an MCP server, and work that waits for a person."""
    with run_sum_server() as sums:
        flags = ("--api-key", ADMIN_KEY, "--store", str(folder / "store.db"), "--mcp-server", f"sums={sums.url}")
        with run_server(*SCRIPTED, *flags) as running:
            asking = {"type": "mcp", "server_label": "sums", "require_approval": "always"}
            weather = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
            for path, body in (
                ("responses", {"model": "fake", "input": "How much is it?", "tools": [asking]}),
                ("responses", {"model": "fake", "input": "weather?", "background": True, "tools": [weather],
                               "wait_for_tool_outputs": True}),
                ("responses", {"model": "fake", "input": "endless", "background": True}),
                ("antiphon/keys", {"tenant": "team", "name": "laptop"}),
            ):  # fmt: skip
                headers = {"authorization": f"Bearer {ADMIN_KEY}"}
                assert running.send("POST", f"/v1/{path}", body, headers)[0] == 200
            yield running


@contextmanager
def open_filled_page(browser: Browser, server: ServerProcess) -> Iterator[Page]:
    """Open the page of such a server, with its key."""
    with browser.new_page() as opened:
        opened.open(f"{server.url}/")
        opened.fill("#key", ADMIN_KEY)
        opened.click("form.key button")
        opened.wait_for("document.querySelector('#model option')")
        yield opened
        opened.check(server.url, allowed=["401"])


@pytest.fixture
def filled_page(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    with run_filled_server(tmp_path) as server, open_filled_page(browser, server) as opened:
        opened.set_size(1200)
        yield opened
