"""All views, in a browser: the log, the server, the key, hostile content, accessibility, colours and small screens."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chromium import Browser, Page
from tests.support.npm import install_packages
from tests.support.server_process import ServerProcess, run_server

pytestmark = pytest.mark.needs("chromium")

HACKED = "window.hacked !== undefined || document.querySelector('main script, main iframe, main b + i') !== null"


@pytest.mark.shows("H7.10")
def test_the_log_lists_responses_and_filters_them(page: Page, server: ServerProcess) -> None:
    response_id = json.loads(server.post({"model": "<b>odd</b>", "input": "hi"})[1])["id"]
    page.open(f"{server.url}/ui/log")
    page.wait_for_text(response_id)
    page.fill("[name=model]", "<b>odd</b>")
    page.wait_for("location.search === '?model=%3Cb%3Eodd%3C%2Fb%3E'")
    page.wait_for("document.querySelectorAll('tbody tr').length === 1")
    page.click(f"a[href='/ui/wire/{response_id}']")
    page.wait_for_text("ended")


@pytest.mark.shows("H7.10")
def test_the_server_view_shows_models_tools_and_figures(page: Page) -> None:
    page.click("a[href='/ui/server']")
    page.wait_for_text("code_interpreter")
    page.wait_for_text("requests_total")
    assert "context 32768" in page.text()


@pytest.mark.shows("H7.2")
def test_a_key_is_asked_for_and_limits_what_is_shown(browser: Browser) -> None:
    with run_server("--engine", "fake", "--api-key", "sk-right") as server, browser.new_page() as page:
        page.open(f"{server.url}/ui/server")
        page.wait_for_text("This server needs an API key")
        assert "fake" not in page.text()
        page.fill("#key", "sk-wrong")
        page.click("form.key button")
        page.wait_for("document.querySelector('#key')?.value === ''")
        page.fill("#key", "sk-right")
        page.click("form.key button")
        page.wait_for_text("context 32768")
        assert "sk-right" not in page.evaluate("document.documentElement.outerHTML")
        page.check(server.url, allowed=["401"])


@pytest.mark.shows("H7.8")
def test_content_of_models_is_shown_as_text(page: Page) -> None:
    page.fill("#draft", "hostile <img src=x onerror=window.hacked=1>")
    page.click("form.composer button.primary")
    page.wait_for("document.querySelector('.figures')")
    text = page.text()
    for shown in ("<script>window.hacked=1</script>", "<iframe src=https://evil.example>", "<u>a</u>", "<b>bold</b>"):
        assert shown in text
    assert not page.evaluate(HACKED)
    assert page.evaluate("[...document.querySelectorAll('main a[target]')].map((one) => one.href)") == [
        "https://evil.example/x.png", "https://evil.example/pixel.png", "https://good.example/",
    ]  # fmt: skip
    page.click(".figures a")
    page.wait_for_text("ended")
    assert not page.evaluate(HACKED)


@pytest.mark.shows("H7.8")
def test_content_of_clients_is_shown_as_text(page: Page, server: ServerProcess) -> None:
    """Names, metadata, tool calls and tool outputs, in every view that shows them."""
    attack = "<img src=x onerror=window.hacked=1>"
    tool = {"type": "function", "name": "f", "description": attack, "parameters": {"type": "object"}}
    items = [
        {"role": "user", "content": attack},
        {"type": "function_call", "call_id": attack, "name": "f", "arguments": json.dumps({"x": attack})},
        {"type": "function_call_output", "call_id": attack, "output": attack},
    ]
    body = {"model": attack, "input": items, "metadata": {attack: attack}, "tools": [tool], "instructions": attack}
    response_id = json.loads(server.post(body)[1])["id"]
    for path in (f"/ui/talk/{response_id}", f"/ui/wire/{response_id}", "/ui/log"):
        page.open(server.url + path)
        page.wait_for_text(attack)
        page.wait_for("!document.querySelector('event-list') || document.querySelector('event-list [role=option]')")
        if "wire" in path:
            page.click("event-list [role=option]")
            page.wait_for("document.querySelector('.detail pre')")
        assert not page.evaluate(HACKED)
        assert page.evaluate("document.querySelectorAll('img').length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.needs("node")
def test_every_view_is_accessible(page: Page, scheme: str) -> None:
    axe = (install_packages(Path(__file__).parent / "node") / "node_modules/axe-core/axe.min.js").read_text()
    page.set_scheme(scheme)
    for path in visit_views(page):
        page.evaluate(f"{axe}; 0")
        found = page.evaluate(
            "axe.run().then(({ violations }) => violations.map((one) => [one.id, one.nodes[0].html]))"
        )
        assert not found, (path, found)


def test_every_view_fits_a_small_screen(page: Page) -> None:
    page.set_size(360, 740)
    for path in visit_views(page):
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path


def visit_views(page: Page) -> Iterator[str]:
    """Yield every view, with content."""
    page.fill("#draft", "markdown")
    page.click("form.composer button.primary")
    page.wait_for("document.querySelector('.figures')")
    page.click(".options summary")
    yield "/ui/talk"
    page.click(".figures a")
    page.wait_for_text("ended")
    page.evaluate("document.querySelectorAll('event-list [role=option]')[3].click()")
    page.evaluate(
        "[...document.querySelectorAll('button')].find((one) => one.textContent === 'Resume from here').click()"
    )
    page.wait_for_text("byte for byte")
    yield "/ui/wire"
    page.click("a[href='/ui/log']")
    page.wait_for("document.querySelector('tbody tr')")
    yield "/ui/log"
    page.click("a[href='/ui/server']")
    page.wait_for_text("requests_total")
    yield "/ui/server"
