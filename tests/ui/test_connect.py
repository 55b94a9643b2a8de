"""Connect, in a browser: the files of clients, and the test that waits for a request."""

import pytest

from tests.support.chromium import Browser, Page
from tests.support.server_process import ServerProcess, run_server
from tests.ui.test_views import press_button

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.shows("I2.7")]

CODEX = {"user-agent": "codex_exec/1.2.3"}


def open_view(page: Page, server: ServerProcess, path: str = "") -> None:
    page.open(f"{server.url}/ui/connect{path}")
    page.wait_for("document.querySelectorAll('pre').length > 1")


def test_a_client_gets_its_files_with_address_model_and_context_window(page: Page, server: ServerProcess) -> None:
    page.click("a[href='/ui/connect']")
    page.wait_for_text("~/.codex/config.toml")
    assert f'base_url = "{server.v1}"' in page.text()
    assert '"context_window": 32768' in page.text()
    assert f"antiphon connect codex --url {server.url} --model fake" in page.text()
    page.fill(".bar select", "claude")
    page.wait_for_text("~/.claude/settings.json")
    assert page.evaluate("location.pathname") == "/ui/connect/claude"
    assert f'"ANTHROPIC_BASE_URL": "{server.url}"' in page.text()


def test_a_file_is_copied(page: Page, server: ServerProcess) -> None:
    open_view(page, server, "/open-webui")
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.evaluate("[...document.querySelectorAll('pre + button')].pop().click()")
    page.wait_for(f"window.copied?.startsWith('OPENAI_API_BASE_URL={server.v1}\\n')")


def test_the_test_reports_the_first_request_and_its_rejection(page: Page, server: ServerProcess) -> None:
    open_view(page, server)
    server.send("GET", "/v1/models", headers=CODEX)  # before the test: it does not count
    press_button(page, "Test it")
    page.wait_for_text("Waiting for a request of Codex")
    server.post({"model": "fake", "input": "hi"})  # of another program
    page.wait_for("Number(/(\\d+) s$/.exec(document.querySelector('[role=status]').textContent)?.[1]) < 179")
    server.send("GET", "/v1/models/%20", headers=CODEX)
    page.wait_for_text("codex_exec/1.2.3 reached /v1/models/{model...}")
    page.wait_for_text("Test it")


def test_the_test_can_be_stopped(page: Page, server: ServerProcess) -> None:
    open_view(page, server, "/zed")
    press_button(page, "Test it")
    press_button(page, "Stop")
    page.wait_for("!document.querySelector('[role=status]').textContent")
    page.wait_for_text("Test it")


def test_the_wait_ends_by_itself(page: Page, server: ServerProcess) -> None:
    open_view(page, server, "/zed")
    page.evaluate(
        "{ const real = setTimeout; window.setTimeout = (call, time) => real(call, time === 1000 ? 1 : time); }"
    )
    press_button(page, "Test it")
    page.wait_for_text("No request of Zed arrived.")


def test_a_key_is_a_placeholder_that_a_copy_replaces(browser: Browser) -> None:
    with run_server("--engine", "fake", "--api-key", "sk-secret") as server, browser.new_page() as page:
        page.open(f"{server.url}/ui/connect/claude")
        page.fill("#key", "sk-secret")
        page.click("form.key button")
        page.wait_for_text('"ANTHROPIC_AUTH_TOKEN": "YOUR_KEY"')
        assert "sk-secret" not in page.text()
        page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
        page.evaluate("[...document.querySelectorAll('pre + button')].pop().click()")
        page.wait_for("""window.copied?.includes('"ANTHROPIC_AUTH_TOKEN": "sk-secret"')""")
        page.check(server.url, allowed=["401"])
