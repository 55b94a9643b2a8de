"""All views, in a browser: the log, the server, the key, hostile content, accessibility, colours and small screens."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.chromium import Browser, Page
from tests.support.npm import install_packages
from tests.support.server_process import ServerProcess, run_server
from tests.tools.mcp.reference_server import run_reference_server
from tests.tools.mcp.sum_server import run_sum_server

pytestmark = pytest.mark.needs("chromium")

ATTACK = "<img src=x onerror=window.hacked=1>"
HACKED = "window.hacked !== undefined || document.querySelector('main script, main iframe, main b + i') !== null"


# Continues the response that Wire shows in two ways.
BRANCHES = """(async () => {
  const create = async (previous_response_id, input) => {
    const body = JSON.stringify({ model: 'fake', input, previous_response_id, instructions: 'Be brief.' });
    const authorization = `Bearer ${sessionStorage.getItem('antiphon-key')}`;
    const headers = { 'content-type': 'application/json', authorization };
    return (await (await fetch('/v1/responses', { method: 'POST', headers, body })).json()).id;
  };
  const root = location.pathname.split('/').pop(), left = await create(root, 'How warm is it in Oslo?');
  await create(left, 'And in winter?');
  await create(await create(root, 'How warm is it in Rome?'), 'And in winter?');
})()"""


def press_button(page: Page, text: str) -> None:
    """Press the first button with this text."""
    find = f"[...document.querySelectorAll('button')].find((one) => one.textContent.trim() === {json.dumps(text)})"
    page.wait_for(find)
    page.evaluate(f"{find}.click()")


@pytest.mark.shows("H7.10")
def test_the_log_follows_responses_and_filters_them(page: Page, server: ServerProcess) -> None:
    page.open(f"{server.url}/ui/log")
    page.wait_for_text("live")
    response_id = json.loads(server.post({"model": "<b>odd</b>", "input": "hi"})[1])["id"]
    page.wait_for_text(response_id)
    server.send("POST", "/v1/chat/completions", {"model": "chatty", "messages": [{"role": "user", "content": "hi"}]})
    page.wait_for_text("not stored req_")
    page.fill("[name=model]", "<b>odd</b>")
    page.wait_for("location.search === '?model=%3Cb%3Eodd%3C%2Fb%3E'")
    page.wait_for("document.querySelectorAll('tbody tr').length === 1")
    page.click(f"a[href='/ui/wire/{response_id}']")
    page.wait_for_text("ended")


@pytest.mark.shows("H7.10")
def test_the_filters_of_the_log_are_those_of_the_address(page: Page, server: ServerProcess) -> None:
    response_id = json.loads(server.post({"model": "fake", "input": "hi"})[1])["id"]
    page.open(f"{server.url}/ui/log?status=failed")
    page.wait_for("document.querySelector('[name=status]')?.value === 'failed'")
    for view in ("log", "inbox", "log"):
        page.click(f"a[href='/ui/{view}']")
    page.wait_for("document.querySelector('[name=status]')?.value === ''")
    page.wait_for_text(response_id)


@pytest.mark.shows("H7.10")
def test_the_server_view_shows_models_tools_and_figures(page: Page) -> None:
    page.click("a[href='/ui/server']")
    page.wait_for_text("code_interpreter")
    page.wait_for("document.querySelectorAll('.charts polyline').length === 6")
    for text in ("context 32768", "All work is accepted", "store memory", "Breaker"):
        assert text in page.text()


@pytest.mark.shows("H7.10")
def test_the_server_view_shows_queues(browser: Browser, server: ServerProcess) -> None:
    flags = ("--engine", f"openai://127.0.0.1:{server.port}", "--engine-slots", "1")
    with run_server(*flags) as limited, browser.new_page() as page:
        for _ in range(2):
            limited.post({"model": "fake", "input": "endless", "background": True})
        page.open(f"{limited.url}/ui/server")
        page.wait_for_text("\t1\t1\tpriority 0 · default 1 · flex 0")
        page.check(limited.url)


@pytest.mark.needs("node")
@pytest.mark.shows("H7.11")
def test_calls_are_approved_and_denied_in_the_inbox(page: Page, server: ServerProcess, tmp_path: Path) -> None:
    with run_reference_server("streamableHttp", tmp_path) as url:
        tool = {"type": "mcp", "server_url": url, "server_label": "everything", "require_approval": "always"}
        for number in range(2):
            server.post({"model": "fake", "input": f"call {number}", "tools": [tool]})
        page.click("a[href='/ui/inbox']")
        page.wait_for("document.querySelectorAll('.inbox .box').length === 2")
        press_button(page, "Approve")
        page.wait_for_text("The tool said:")
        page.click("a[href='/ui/inbox']")
        page.wait_for("document.querySelectorAll('.inbox .box').length === 1")
        page.fill("[aria-label=Reason]", "not <b>today</b>")
        press_button(page, "Deny")
        page.wait_for_text("denied")
        page.click("a[href='/ui/inbox']")
        page.wait_for_text("Nothing waits.")


@pytest.mark.shows("H7.11")
def test_nothing_moves_below_the_focus_in_the_inbox(page: Page, server: ServerProcess) -> None:
    """Otherwise the key that approves one call would approve another one."""
    body = {"model": "fake", "input": "endless", "background": True}
    first = json.loads(server.post(body)[1])["id"]
    page.click("a[href='/ui/inbox']")
    box = "[...document.querySelectorAll('.inbox .box')].find((one) => one.textContent.includes('%s'))"
    page.wait_for(box % first)
    page.evaluate(f"({box % first}).querySelector('button').focus()")
    second = json.loads(server.post(body)[1])["id"]
    page.wait_for(box % second)
    assert first in page.evaluate("document.activeElement.closest('.box').textContent")
    server.send("POST", f"/v1/responses/{first}/cancel")
    page.wait_for(f"!({box % first})")
    assert page.evaluate("document.activeElement.closest('.box')") is None
    server.send("POST", f"/v1/responses/{second}/cancel")
    page.wait_for(f"!({box % second})")


@pytest.mark.shows("H7.11")
def test_a_tool_is_approved_for_a_conversation(page: Page, server: ServerProcess) -> None:
    """The response that continues it, and those of Talk after it, do not ask about this tool again."""
    with run_sum_server() as sums:
        conversation = json.loads(server.send("POST", "/v1/conversations", {})[1])["id"]
        tool = {"type": "mcp", "server_url": sums.url, "server_label": "sums", "require_approval": "always"}
        server.post({"model": "fake", "input": "first", "tools": [tool], "conversation": conversation})
        page.click(".options summary")
        press_button(page, "Add a server")
        page.fill("[aria-label='Label of the MCP server']", "sums")
        page.fill("[aria-label='URL of the MCP server']", sums.url)
        page.click("a[href='/ui/inbox']")
        press_button(page, "Always in this conversation")
        page.wait_for_text("The tool said:")
        page.fill("#draft", "again")
        page.click("form.composer button.primary")
        page.wait_for(
            "document.querySelectorAll('.turn').length > 2 && document.querySelectorAll('.figures').length > 2"
        )
        assert len(sums.calls) == 2
        rule = json.loads(server.get(page.evaluate("location.pathname.replace('/ui/talk', '/v1/responses')"))[1])
        assert rule["tools"][0]["require_approval"] == {"never": {"tool_names": ["add"]}}
    items = json.loads(server.get(f"/v1/conversations/{conversation}/items?limit=100")[1])["data"]
    assert {"mcp_approval_response", "mcp_call"} <= {item["type"] for item in items}


@pytest.mark.shows("H7.11")
def test_waiting_responses_get_outputs_and_are_cancelled_in_the_inbox(page: Page, server: ServerProcess) -> None:
    tool = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
    body = {"model": "fake", "input": "weather?", "background": True, "wait_for_tool_outputs": True, "tools": [tool]}
    waiting = json.loads(server.post(body)[1])["id"]
    running = json.loads(server.post({"model": "fake", "input": "endless", "background": True})[1])["id"]
    page.click("a[href='/ui/inbox']")
    page.wait_for("document.querySelector('[aria-label=Output]')")
    assert "<b>Oslo</b>" in page.text()
    page.fill("[aria-label=Output]", "rain")
    press_button(page, "Send")
    page.wait_for("!document.querySelector('[aria-label=Output]')")
    page.wait_for_text(running)
    press_button(page, "Cancel")
    page.wait_for_text("Nothing waits.")
    assert json.loads(server.get(f"/v1/responses/{running}")[1])["status"] == "cancelled"
    page.open(f"{server.url}/ui/talk/{waiting}")
    page.wait_for_text("Take an umbrella.")


@pytest.mark.shows("H7.12")
def test_keys_are_created_and_revoked(browser: Browser, tmp_path: Path) -> None:
    flags = ["--engine", "fake", "--api-key", "sk-admin", "--store", str(tmp_path / "store.db")]
    with run_server(*flags) as server, browser.new_page() as page:
        page.open(f"{server.url}/ui/keys")
        page.fill("#key", "sk-admin")
        page.click("form.key button")
        page.fill("[name=tenant]", "team")
        page.fill("[name=name]", "<i>mine</i>")
        press_button(page, "Create a key")
        page.wait_for("document.querySelector('.keys .notice code')")
        secret = page.evaluate("document.querySelector('.keys .notice code').textContent")
        header = {"authorization": f"Bearer {secret}"}
        assert server.send("GET", "/v1/models", headers=header)[0] == 200
        assert server.send("GET", "/metrics", headers=header)[0] == 403
        page.evaluate("window.confirm = () => true")
        press_button(page, "Revoke")
        page.wait_for_text("revoked")
        assert "<i>mine</i>" in page.text()
        assert server.send("GET", "/v1/models", headers=header)[0] == 401
        page.check(server.url, allowed=["401"])


def test_a_request_that_was_rejected_before_the_key_was_set_is_sent_again(browser: Browser) -> None:
    with run_server("--engine", "fake", "--api-key", "sk-mine") as server, browser.new_page() as page:
        page.open(f"{server.url}/ui/keys")
        page.wait_for("document.querySelector('#key')")
        statuses = page.evaluate("""(async () => {
            const { needsKey, send, setKey } = await import('/ui/api.js');
            const early = send('/v1/models');
            setKey('sk-mine');
            return [(await early).status, needsKey.value];
        })()""")
        assert statuses == [200, False]


@pytest.mark.shows("H7.12")
def test_the_usage_of_each_key_and_day_is_shown(browser: Browser, tmp_path: Path) -> None:
    flags = ["--engine", "fake", "--api-key", "sk-admin", "--store", str(tmp_path / "store.db")]
    flags += ["--quota-key-requests-per-minute", "60"]
    with run_server(*flags) as server:
        header = {"authorization": "Bearer sk-admin"}
        assert server.send("POST", "/v1/responses", {"model": "fake", "input": "hi"}, header)[0] == 200
    with run_server(*flags) as server, browser.new_page() as page:  # the first one has stored its counts
        page.open(f"{server.url}/ui/keys")
        page.fill("#key", "sk-admin")
        page.click("form.key button")
        page.wait_for_text("Usage per day")
        page.wait_for("document.querySelectorAll('table').length === 2")
        days = page.evaluate("[...document.querySelectorAll('table:last-of-type td')].map((one) => one.textContent)")
        assert days[-7:][1] == "default"
        assert days[-4] == "1"
        assert "60 requests/min" in page.text()
        page.check(server.url, allowed=["401"])


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
        page.evaluate("window.isOld = true")
        press_button(page, "Forget the key")
        page.wait_for("!window.isOld && document.querySelector('#key')")  # nothing of the first key is left
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
    tool = {"type": "function", "name": "f", "description": ATTACK, "parameters": {"type": "object"}}
    items = [
        {"role": "user", "content": ATTACK},
        {"type": "function_call", "call_id": ATTACK, "name": "f", "arguments": json.dumps({"x": ATTACK})},
        {"type": "function_call_output", "call_id": ATTACK, "output": ATTACK},
    ]
    body = {"model": ATTACK, "input": items, "metadata": {ATTACK: ATTACK}, "tools": [tool], "instructions": ATTACK}
    response_id = json.loads(server.post(body)[1])["id"]
    for path in (f"/ui/talk/{response_id}", f"/ui/wire/{response_id}", "/ui/log"):
        page.open(server.url + path)
        page.wait_for_text(ATTACK)
        page.wait_for("!document.querySelector('event-list') || document.querySelector('event-list [role=option]')")
        if "wire" in path:
            page.click("event-list [role=option]")
            page.wait_for("document.querySelector('.detail pre')")
        assert not page.evaluate(HACKED)
        assert page.evaluate("document.querySelectorAll('img').length") == 0


@pytest.mark.shows("H7.8")
def test_addresses_and_errors_are_shown_as_text(page: Page, server: ServerProcess) -> None:
    attack = "<img src=x onerror=window.hacked=1>"
    place = quote(attack)
    server.post({"model": "fake", "input": f"fails {attack}"})
    for path in (f"wire/{place}", f"talk/{place}", f"log?model={place}", f"log?status={place}", f"wire/x?type={place}"):
        page.open(f"{server.url}/ui/{path}")
        page.wait_for("document.querySelector('main').innerText.length > 40 || document.querySelector('.notice')")
        assert not page.evaluate(HACKED), path
        assert page.evaluate("document.querySelectorAll('img').length") == 0
    page.open(f"{server.url}/ui/log")
    response_id = json.loads(server.get("/v1/antiphon/responses?status=failed&limit=1")[1])["first_id"]
    page.fill("[name=id]", response_id)
    press_button(page, "Show")
    page.wait_for_text("ended")
    page.click(".event:last-child")
    page.wait_for_text("The engine <i>died</i>.")
    assert not page.evaluate(HACKED)
    page.complaints = [one for one in page.complaints if "404" not in one and "400" not in one]


# Every kind of item, with text of models, tools, MCP servers and search results in every place where it can be.
HOSTILE_ITEMS: list[dict[str, Any]] = [
    {"type": "message", "role": "assistant", "content": [
        {"type": "output_text", "text": "ATTACK", "annotations": [
            {"type": "url_citation", "url": "javascript:window.hacked=1", "title": "ATTACK", "start_index": 0,
             "end_index": 1},
            {"type": "file_citation", "file_id": "file_1", "filename": "ATTACK", "index": 0},
        ]},
        {"type": "refusal", "refusal": "ATTACK"},
    ]},
    {"type": "message", "role": "user", "content": [
        {"type": "input_file", "filename": "ATTACK.txt", "file_data": "data:text/plain;base64,aGk="}]},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "ATTACK"}]},
    {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "ATTACK"},
    {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "ATTACK"}]},
    {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "odd", "tools": [
        {"name": "ATTACK", "description": "ATTACK", "input_schema": {}}]},
    {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "odd", "name": "ATTACK", "arguments": "ATTACK"},
    {"type": "mcp_call", "id": "mcp_1", "server_label": "odd", "name": "ATTACK", "arguments": "ATTACK",
     "output": "ATTACK"},
    {"type": "mcp_call", "id": "mcp_2", "server_label": "odd", "name": "g", "arguments": "{}", "error": "ATTACK"},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "ATTACK"}},
    {"type": "code_interpreter_call", "id": "ci_1", "status": "completed", "container_id": "cntr_1", "code": "ATTACK"},
]  # fmt: skip


@pytest.mark.shows("H7.8")
def test_content_of_every_item_is_shown_as_text(page: Page, server: ServerProcess) -> None:
    template = json.dumps(HOSTILE_ITEMS)
    numbers = iter(range(template.count("ATTACK")))  # each place has its own text
    items = json.loads(re.sub("ATTACK", lambda _: f"[{next(numbers)}] {ATTACK}", template))
    body = {"model": "fake", "input": [*items, {"role": "user", "content": "hi"}], "metadata": {"a": f"m {ATTACK}"}}
    response_id = json.loads(server.post(body)[1])["id"]
    page.open(f"{server.url}/ui/talk/{response_id}")
    page.wait_for("document.querySelector('.figures')")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    text = page.text()
    # the citation of a script shows its type only
    assert [number for number in range(template.count("ATTACK")) if f"[{number}] {ATTACK}" not in text] == [1]
    assert not page.evaluate(HACKED)
    page.click(".figures a")
    page.wait_for("document.querySelector('event-list [role=option]')")
    page.click("event-list [role=option]")
    page.wait_for_text(f"m {ATTACK}")
    assert not page.evaluate(HACKED)
    assert page.evaluate("document.querySelectorAll('img').length") == 0


@pytest.mark.needs("node")
def test_every_view_is_accessible_in_both_schemes_and_fits_a_small_screen(filled_page: Page) -> None:
    page = filled_page
    for path in visit_views(page):
        page.set_scheme("dark")
        assert find_violations(page, "color-contrast") == [], f"{path}, dark"
        page.set_scheme("light")
        assert find_violations(page) == [], path
        page.set_size(360, 740)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        page.set_size(1200)


def find_violations(page: Page, *rules: str) -> list[list[str]]:
    """Return the rules of accessibility that the page breaks, of these or of all, each with the first element that
    does.
    """
    axe = (install_packages(Path(__file__).parent / "node") / "node_modules/axe-core/axe.min.js").read_text()
    page.evaluate(f"{axe}; 0")
    options = json.dumps({"runOnly": rules} if rules else {})
    listed = "({ violations }) => violations.map((one) => [one.id, one.nodes[0].html])"
    return list(page.evaluate(f"axe.run({options}).then({listed})"))


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
    page.evaluate(BRANCHES)
    page.click("a[href='/ui/items']")
    page.wait_for("document.querySelectorAll('.tree li').length > 4")
    page.wait_for_text("And in winter?")
    page.evaluate("document.querySelector('.tree a[href*=with]').click()")
    page.wait_for_text("in common: 1, items: 0")
    yield "/ui/items"
    page.click("a[href='/ui/timing']")
    page.wait_for("document.querySelector('svg') && document.querySelector('pre[aria-label=Prompt]')")
    yield "/ui/timing"
    page.click("a[href='/ui/inbox']")
    page.wait_for("document.querySelectorAll('.inbox .box').length === 4")
    yield "/ui/inbox"
    page.click("a[href='/ui/log']")
    page.wait_for("document.querySelector('tbody tr')")
    yield "/ui/log"
    page.click("a[href='/ui/server']")
    page.wait_for_text("All work is accepted")
    yield "/ui/server"
    page.click("a[href='/ui/keys']")
    page.wait_for_text("laptop")
    yield "/ui/keys"
    page.click("a[href='/ui/mcp']")
    page.fill("[name=require_approval]", "always")
    press_button(page, "List its tools")
    page.click(".mcp .box summary")
    page.fill("[name='.a']", "2")
    page.fill("[name='.b']", "40")
    press_button(page, "Approve and call")
    page.wait_for_text("2 + 40 = 42")
    yield "/ui/mcp"
    page.click("a[href='/ui/connect']")
    page.wait_for_text("model_providers")
    yield "/ui/connect"
