"""Talk, in a browser: requests are composed, answers grow, calls are answered, and everything works by keyboard."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.chromium import Browser, Page
from tests.support.server_process import ServerProcess, run_server
from tests.tools.mcp.reference_server import run_reference_server

pytestmark = pytest.mark.needs("chromium")

OPTIONS = ".options summary"
SHIFT = 8  # the modifier of CDP
TURNS = "document.querySelectorAll('.figures').length"


def ask(page: Page, text: str) -> None:
    page.fill("#draft", text)
    page.click("form.composer button.primary")


def press(page: Page, text: str) -> None:
    """Press the button with this text."""
    find = f"[...document.querySelectorAll('button')].find((one) => one.textContent.trim() === {json.dumps(text)})"
    page.wait_for(f"{find} && !{find}.disabled")
    page.evaluate(f"{find}.click()")


def wait_for_turns(page: Page, count: int) -> None:
    page.wait_for(f"{TURNS} === {count}")


def last_request(page: Page, server: ServerProcess) -> Any:
    """Return the last response, which echoes the fields of its request."""
    response_id = page.evaluate("location.pathname.split('/').pop()")
    return json.loads(server.get(f"/v1/responses/{response_id}")[1])


@pytest.mark.shows("H7.6")
def test_an_answer_grows_and_has_figures(page: Page) -> None:
    ask(page, "slow, please")
    page.wait_for_text("It begins")
    assert page.evaluate("document.querySelector('.stop') !== null")
    page.wait_for_text("It begins and goes on and ends.")
    wait_for_turns(page, 1)
    assert "first token" in page.text()
    assert "tokens/s" in page.text()


@pytest.mark.shows("H7.6")
def test_a_conversation_continues_and_its_address_opens_it_again(page: Page, server: ServerProcess) -> None:
    ask(page, "markdown")
    wait_for_turns(page, 1)
    ask(page, "and again")
    wait_for_turns(page, 2)
    page.wait_for("location.pathname.startsWith('/ui/talk/resp_')")
    assert last_request(page, server)["previous_response_id"]
    page.open(server.url + page.evaluate("location.pathname"))
    wait_for_turns(page, 2)
    assert "You said: and again" in page.text()
    tags = page.evaluate("[...document.querySelectorAll('.markdown *')].map((node) => node.localName)")
    assert {"h2", "strong", "em", "code", "a", "ol", "ul", "blockquote", "table", "pre"} <= set(tags)


@pytest.mark.shows("H7.6")
def test_fields_of_the_composer_are_sent(page: Page, server: ServerProcess) -> None:
    page.click(OPTIONS)
    page.fill("[name=instructions]", "Be brief.")
    page.fill("[name=effort]", "low")
    page.fill("[name=maxTokens]", "50")
    page.fill("[name=schema]", '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], '
                               '"additionalProperties": false}')  # fmt: skip
    ask(page, "hello")
    wait_for_turns(page, 1)
    page.wait_for("location.pathname.startsWith('/ui/talk/resp_')")
    sent = last_request(page, server)
    assert (sent["instructions"], sent["max_output_tokens"], sent["background"]) == ("Be brief.", 50, True)
    assert sent["reasoning"]["effort"] == "low"
    assert sent["text"]["format"]["type"] == "json_schema"
    assert '"a"' in page.text()


@pytest.mark.shows("H7.6")
def test_the_output_of_a_function_is_asked_for_and_sent(page: Page) -> None:
    page.click(OPTIONS)
    press(page, "Insert an example")
    ask(page, "weather?")
    page.wait_for_text("Output of get_weather")
    assert "<b>Oslo</b>" in page.text()
    page.fill(".pending textarea", "rain <b>all</b> day")
    page.click(".pending button.primary")
    page.wait_for_text("Take an umbrella.")
    assert "rain <b>all</b> day" in page.text()


@pytest.mark.needs("node")
@pytest.mark.shows("H7.6", "H7.8")
def test_a_call_of_an_mcp_server_is_approved(page: Page, tmp_path: Path) -> None:
    with run_reference_server("streamableHttp", tmp_path) as url:
        page.click(OPTIONS)
        press(page, "Add a server")
        page.fill("[type=url]", url)
        page.fill("[aria-label='Label of the MCP server']", "everything")
        ask(page, "use it")
        page.wait_for_text("May everything run")
        press(page, "Approve")
        press(page, "Continue")
        wait_for_turns(page, 2)
        page.wait_for_text("The tool said:")
    assert "approved" in page.text()


@pytest.mark.shows("H7.6")
def test_a_conversation_that_is_not_stored_sends_its_history(page: Page) -> None:
    page.click(OPTIONS)
    page.click(".options [type=checkbox]")
    ask(page, "markdown")
    wait_for_turns(page, 1)
    ask(page, "and again")
    wait_for_turns(page, 2)
    page.wait_for_text("You said: and again")
    assert page.evaluate("location.pathname") == "/"
    first, second = page.evaluate("[...document.querySelectorAll('.figures')].map((one) => one.innerText)")
    assert tokens_in(second) > tokens_in(first)


def tokens_in(figures: str) -> int:
    return int(re.findall(r"(\d+) in", figures)[0])


def test_what_is_not_json_is_explained_and_not_sent(page: Page) -> None:
    page.click(OPTIONS)
    page.fill("[name=functions]", "[{]")
    ask(page, "hello")
    page.wait_for_text("The functions must be JSON")
    assert page.evaluate("document.querySelectorAll('.turn').length") == 0
    page.fill("[name=functions]", "")
    ask(page, "hello")
    wait_for_turns(page, 1)
    assert "must be JSON" not in page.text()


@pytest.mark.shows("H7.6")
def test_dropped_images_and_files_are_sent(page: Page) -> None:
    page.evaluate(
        """(async () => {
          const canvas = document.createElement('canvas');
          canvas.width = canvas.height = 8;
          const blob = await new Promise((resolve) => canvas.toBlob(resolve));
          const data = new DataTransfer();
          data.items.add(new File([blob], 'dot.png', { type: 'image/png' }));
          data.items.add(new File(['the notes'], 'notes.txt', { type: 'text/plain' }));
          document.querySelector('.talk').dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true }));
        })()"""
    )
    page.wait_for("document.querySelectorAll('.composer .chips .chip').length === 2")
    ask(page, "what is this?")
    page.wait_for_text("[image png 8x8]")
    page.wait_for("document.querySelector('.turn img').naturalWidth === 8")
    assert "notes.txt" in page.text()


@pytest.mark.shows("H7.6")
def test_an_answer_can_be_stopped(page: Page, server: ServerProcess) -> None:
    ask(page, "endless")
    page.wait_for_text("Without")
    page.click(".stop")
    wait_for_turns(page, 1)
    page.wait_for("location.pathname.startsWith('/ui/talk/resp_')")
    assert last_request(page, server)["status"] == "cancelled"


def test_an_error_is_shown_and_the_conversation_continues(page: Page) -> None:
    ask(page, "fails")
    page.wait_for_text("The engine <i>died</i>.")
    wait_for_turns(page, 1)
    ask(page, "go on")
    page.wait_for_text("You said: go on")


def test_a_server_that_stores_nothing_can_be_talked_to(browser: Browser) -> None:
    with run_server("--engine", "fake", "--disable-store") as server, browser.new_page() as page:
        page.open(f"{server.url}/")
        page.wait_for("document.querySelector('#model option')")
        for count in (1, 2):
            ask(page, f"hello {count}")
            page.wait_for_text(f"You said: hello {count}")
            wait_for_turns(page, count)
        page.check(server.url, allowed=["status of 400"])


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("curl", "/v1/responses \\"), ("openai-python", "client.responses.create("),
        ("openai-node", "new OpenAI({ baseURL:"), ("Codex", "[model_providers.antiphon]"),
    ],
)  # fmt: skip
@pytest.mark.shows("H7.6")
def test_a_request_can_be_copied_for_other_clients(page: Page, server: ServerProcess, name: str, part: str) -> None:
    page.fill("#draft", 'it\'s "quoted"')
    page.fill("[aria-label='Copy as']", name)
    page.wait_for("document.querySelector('.snippet')")
    text = page.evaluate("document.querySelector('.snippet').textContent")
    assert part in text
    assert server.url in text


@pytest.mark.shows("H7.6")
def test_everything_works_by_keyboard(page: Page) -> None:
    """Tab reaches the message, the options and every field; Enter sends, Escape closes."""
    page.evaluate("document.body.focus()")
    reached: list[str] = []
    while "draft" not in reached:
        page.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
        assert len(reached) < 20, reached
    assert reached[:9] == ["Antiphon", "Talk", "Wire", "Items", "Timing", "Inbox", "Log", "Server", "Keys"]
    page.type("first line")
    page.press("Enter", modifiers=SHIFT)
    page.type("second line")
    page.press("Enter")
    page.wait_for_text("second line")
    wait_for_turns(page, 1)
    focused = "document.activeElement.localName"
    for _ in range(10):
        page.press("Tab")
        if page.evaluate(focused) == "summary":
            break
    page.press("Enter")
    page.wait_for("document.querySelector('.options').open")
    page.press("Tab")
    page.type("Be brief.")
    assert page.evaluate("document.querySelector('[name=instructions]').value") == "Be brief."


def tab_to(page: Page, name: str, modifiers: int = 0) -> None:
    """Press Tab until an element with this name, label or text has the focus."""
    named = "[one.name, one.ariaLabel, one.textContent.trim()]"
    for _ in range(40):
        page.press("Tab", modifiers)
        if page.evaluate(f"((one) => {named}.includes({json.dumps(name)}))(document.activeElement)"):
            return
    raise AssertionError(f"{name} is not reached")


@pytest.mark.shows("H7.6", "H7.20")
def test_lanes_steering_and_copying_work_by_keyboard(page: Page) -> None:
    page.evaluate("document.body.focus()")
    tab_to(page, "transport")
    page.press("ArrowDown")
    page.wait_for("document.querySelector('[name=transport]').value === 'websocket'")
    tab_to(page, "Add a lane")
    page.press("Enter")
    page.wait_for("document.querySelectorAll('.lane').length === 2")
    tab_to(page, "Message", SHIFT)
    page.type("endless")
    page.press("Enter")
    page.wait_for("document.querySelectorAll('.message.assistant').length === 2")
    assert page.evaluate("document.activeElement.id") == "draft"
    page.type("shorter")
    page.press("Enter")
    wait_for_turns(page, 4)
    tab_to(page, "Lane 1", SHIFT)
    page.press(" ")
    page.wait_for("document.activeElement.ariaPressed === 'true'")
    tab_to(page, "all")
    page.press(" ")
    tab_to(page, "Message", SHIFT)
    page.type("endless, here")
    page.press("Enter")
    page.wait_for("document.querySelectorAll('.message.assistant').length === 5")
    tab_to(page, "Stop")
    page.press("Enter")
    wait_for_turns(page, 5)
    tab_to(page, "Copy as", SHIFT)
    page.press("ArrowDown")
    page.wait_for("document.querySelector('dialog').open && document.activeElement.className === 'snippet'")
    page.press("Escape")
    page.wait_for("!document.querySelector('dialog').open && document.activeElement.ariaLabel === 'Copy as'")
    tab_to(page, "Remove lane 2", SHIFT)
    page.press("Enter")
    page.wait_for("document.querySelectorAll('.lane').length === 1")
