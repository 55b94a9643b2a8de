"""MCP, in a browser: the tools of a real server are listed and called; what it sends is shown as text."""

import json
from collections.abc import Iterator

import pytest

from tests.support.chromium import Page
from tests.support.server_process import ServerProcess
from tests.tools.mcp.sum_server import SumServer, run_sum_server
from tests.ui.test_views import HACKED, press_button

pytestmark = pytest.mark.needs("chromium")

ATTACK = "<img src=x onerror=window.hacked=1>"


@pytest.fixture
def sums() -> Iterator[SumServer]:
    with run_sum_server() as sums:
        yield sums


def list_tools(page: Page, url: str, approval: str = "") -> None:
    page.click("a[href='/ui/mcp']")
    page.fill("[name=server_url]", url)
    page.fill("[name=require_approval]", approval)
    press_button(page, "List its tools")


@pytest.mark.shows("H7.23")
def test_tools_are_listed_with_bounds_and_called_with_fields_or_json(page: Page, sums: SumServer) -> None:
    list_tools(page, sums.url)
    page.wait_for_text("1 of at most 512 tools, listed within 30 s")
    assert "needs an approval" not in page.text()
    page.click(".mcp .box summary")
    page.fill("[name='.a']", "2")
    page.fill("[name='.b']", "40")
    press_button(page, "Call")
    page.wait_for_text("2 + 40 = 42")
    page.fill("[name=json]", json.dumps({"a": 1, "b": 1}))
    press_button(page, "Call")
    page.wait_for_text("1 + 1 = 2")
    page.fill("[name=json]", json.dumps({"a": "none"}))
    press_button(page, "Call")
    page.wait_for_text("mcp_tool_execution_error")
    assert sums.calls == [(2, 40), (1, 1)]


@pytest.mark.shows("H7.23")
def test_approvals_are_shown_and_errors_of_the_server_too(page: Page, sums: SumServer) -> None:
    list_tools(page, sums.url, "always")
    page.wait_for_text("needs an approval")
    page.click(".mcp .box summary")
    page.fill("[name=json]", json.dumps({"a": 2, "b": 3}))
    press_button(page, "Approve and call")
    page.wait_for_text("2 + 3 = 5")
    list_tools(page, "http://10.0.0.1/mcp")
    page.wait_for_text("--allow-egress")
    list_tools(page, sums.url + "/nowhere")
    page.wait_for_text("404")
    assert not page.evaluate("document.querySelector('.mcp .box')")
    page.complaints = [one for one in page.complaints if "400" not in one and "424" not in one]


@pytest.mark.shows("H7.8")
def test_what_a_server_sends_is_shown_as_text(page: Page, server: ServerProcess, sums: SumServer) -> None:
    """Its names, descriptions, schemas, outputs and errors: in MCP, in the Inbox and in Talk."""

    async def attack(value: str = ATTACK) -> str:
        """Repeat a text, or fail with it."""
        if value == "fail":
            raise ValueError(ATTACK)
        return value + ATTACK

    sums.add_tool(attack, ATTACK, ATTACK)
    list_tools(page, sums.url)
    page.wait_for("document.querySelectorAll('.mcp > .box').length === 2")
    page.evaluate("document.querySelectorAll('.mcp details').forEach((one) => { one.open = true; })")
    for text in ("fail", ATTACK):
        page.fill(".mcp > .box:nth-of-type(2) [name='.value']", text)
        page.evaluate("document.querySelector('.mcp > .box:nth-of-type(2) form button').click()")
        page.wait_for_text("mcp_tool_execution_error" if text == "fail" else ATTACK * 2)
        assert not page.evaluate(HACKED)
    tool = {"type": "mcp", "server_label": ATTACK, "server_url": sums.url, "require_approval": "always",
            "allowed_tools": [ATTACK]}  # fmt: skip
    response_id = json.loads(server.post({"model": "fake", "input": ATTACK, "tools": [tool]})[1])["id"]
    for path in ("inbox", f"talk/{response_id}", f"wire/{response_id}"):
        page.open(f"{server.url}/ui/{path}")
        page.wait_for(f"document.querySelector('main').innerText.split({json.dumps(ATTACK)}).length > 2")
        assert not page.evaluate(HACKED)
        assert page.evaluate("document.querySelectorAll('img').length") == 0
    page.open(f"{server.url}/ui/inbox")
    press_button(page, "Deny")
    page.wait_for_text("denied")
    assert not page.evaluate(HACKED)
