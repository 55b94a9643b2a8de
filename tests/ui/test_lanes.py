"""Talk over a WebSocket, in a browser: answers are stopped, steered, and run side by side in lanes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chromium import Browser, Page
from tests.support.npm import install_packages
from tests.support.server_process import ServerProcess, run_server
from tests.ui.conftest import REPLIES
from tests.ui.test_talk import OPTIONS, ask, last_request, press, wait_for_turns

pytestmark = pytest.mark.needs("chromium")

LANES = "[...document.querySelectorAll('.lane')].map((one) => one.innerText)"


@pytest.fixture
def talk(page: Page) -> Page:
    """Talk, with a WebSocket as its transport."""
    page.fill("[name=transport]", "websocket")
    return page


def read_lanes(page: Page, *parts: str) -> None:
    """Wait until each lane shows its part."""
    page.wait_for(f"{json.dumps(parts)}.every((part, index) => {LANES}[index].includes(part))")


@pytest.mark.shows("H7.20")
def test_a_conversation_over_a_websocket_is_that_of_http(talk: Page, server: ServerProcess) -> None:
    ask(talk, "markdown")
    wait_for_turns(talk, 1)
    ask(talk, "and again")
    wait_for_turns(talk, 2)
    talk.wait_for("location.pathname.startsWith('/ui/talk/resp_')")
    response = last_request(talk, server)
    assert response["previous_response_id"]
    assert not response["background"]
    assert not [url for url in talk.urls if url.endswith("/v1/responses")]  # nothing was posted
    talk.click(".turn:last-of-type .figures a")
    talk.evaluate("document.querySelectorAll('event-list [role=option]')[4].click()")
    press(talk, "Resume from here")
    talk.wait_for("document.querySelector('.comparison p').className === 'same'")


@pytest.mark.shows("H7.20")
def test_an_answer_on_a_websocket_is_cancelled_and_continued(talk: Page, server: ServerProcess) -> None:
    ask(talk, "endless")
    talk.wait_for_text("Without")
    talk.click(".stop")
    wait_for_turns(talk, 1)
    talk.wait_for("location.pathname.startsWith('/ui/talk/resp_')")
    assert last_request(talk, server)["status"] == "cancelled"
    ask(talk, "go on")
    talk.wait_for_text("You said: go on")


@pytest.mark.shows("H7.20")
def test_a_running_answer_is_steered(talk: Page, server: ServerProcess) -> None:
    ask(talk, "endless")
    talk.wait_for_text("Without")
    assert talk.evaluate("document.querySelector('form.composer .primary').textContent") == "Steer"
    ask(talk, "No, shorter!")
    talk.wait_for_text("You said: No, shorter!")
    wait_for_turns(talk, 2)
    assert "Incomplete: steered" in talk.text()
    assert talk.evaluate("document.querySelectorAll('.message.user')[1].innerText") == "No, shorter!"
    talk.wait_for("location.pathname.startsWith('/ui/talk/resp_')")
    assert last_request(talk, server)["previous_response_id"]


@pytest.mark.shows("H7.20")
def test_input_that_cannot_steer_waits_or_comes_back(talk: Page, server: ServerProcess) -> None:
    talk.click(OPTIONS)
    press(talk, "Insert an example")
    ask(talk, "forecast?")
    talk.wait_for("document.querySelector('.turn .box')")
    ask(talk, "And tomorrow?")
    talk.wait_for_text("will be sent with the outputs")
    talk.fill(".pending textarea", "rain")
    talk.click(".pending button.primary")
    wait_for_turns(talk, 2)
    assert "And tomorrow?" in talk.evaluate("document.querySelectorAll('.turn')[1].innerText")
    path = f"/v1/responses/{last_request(talk, server)['id']}/input_items"
    assert b"And tomorrow?" in server.get(path)[1]
    assert "will be sent with the outputs" not in talk.text()
    press(talk, "New")
    # it arrives too late: the id is that of no running response
    talk.evaluate(
        """WebSocket.prototype.send = new Proxy(WebSocket.prototype.send, {
          apply: (send, socket, [text]) => send.call(socket, text.replace(/("response.steer".*)"resp_/, '$1"other_')),
        })"""
    )
    ask(talk, "endless")
    talk.wait_for_text("Without")
    ask(talk, "too late")
    talk.wait_for_text("No response with this id is running")
    talk.wait_for("document.querySelector('#draft').value === 'too late'")
    talk.click(".stop")


@pytest.mark.shows("H7.20")
def test_one_prompt_is_sent_to_lanes_with_other_settings(talk: Page) -> None:
    press(talk, "Add a lane")
    talk.click(OPTIONS)
    talk.fill("[name=effort]", "low")
    ask(talk, "hello")
    wait_for_turns(talk, 2)
    read_lanes(talk, "You said: hello", "Reasoning")
    assert "Reasoning" not in talk.evaluate(LANES)[0]
    press(talk, "Lane 1")
    talk.wait_for("document.querySelector('[name=effort]').value === ''")
    talk.click("[name=all]")
    ask(talk, "only here")
    read_lanes(talk, "You said: only here")
    assert "only here" not in talk.evaluate(LANES)[1]
    press(talk, "Lane 2")
    ask(talk, "endless")
    read_lanes(talk, "You said", "Without")
    talk.click(".stop")  # that of the chosen lane
    wait_for_turns(talk, 4)
    press(talk, "✕")
    talk.wait_for("document.querySelectorAll('.lane').length === 1")


@pytest.mark.shows("H7.20")
def test_lanes_run_side_by_side_and_stand_below_each_other_on_a_small_screen(talk: Page) -> None:
    press(talk, "Add a lane")
    ask(talk, "endless")
    read_lanes(talk, "Without", "Without")
    tops = "new Set([...document.querySelectorAll('.lane')].map((one) => one.offsetTop)).size"
    assert talk.evaluate(tops) == 1
    talk.set_size(360, 740)
    assert talk.evaluate(tops) == 2
    assert talk.evaluate("document.documentElement.scrollWidth") <= 360
    press(talk, "Stop")
    wait_for_turns(talk, 2)


@pytest.mark.shows("H7.9", "H7.20")
def test_a_websocket_that_breaks_off_is_taken_up_over_http(talk: Page) -> None:
    ask(talk, "slow, please")
    talk.wait_for_text("It begins")
    talk.click("a[href='/ui/wire']")
    press(talk, "Drop the connection")
    talk.wait_for_text("taken up again")
    talk.wait_for_text("It begins and goes on and ends.")
    talk.wait_for_text("ended")


@pytest.fixture
def limited(browser: Browser) -> Iterator[tuple[Page, ServerProcess]]:
    """A server with a key and without lanes."""
    flags = ("--engine", "fake", "--fake-script", str(REPLIES), "--api-key", "sk-right", "--websocket-lanes", "off")
    with run_server(*flags) as server, browser.new_page() as page:
        page.open(f"{server.url}/")
        page.fill("#key", "sk-right")
        page.click("form.key button")
        page.wait_for("document.querySelector('#model option')")
        yield page, server


@pytest.mark.shows("F.13", "H7.20")
def test_a_websocket_has_the_key_of_the_page_and_errors_are_shown(limited: tuple[Page, ServerProcess]) -> None:
    page, server = limited
    page.fill("[name=transport]", "websocket")
    ask(page, "hello")
    page.wait_for_text("You said: hello")
    press(page, "Add a lane")
    ask(page, "and here")
    page.wait_for_text("This server has no named streams")
    read_lanes(page, "You said: and here")
    page.check(server.url, allowed=["401"])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.needs("node")
def test_lanes_and_the_dialog_are_accessible(talk: Page, scheme: str) -> None:
    axe = (install_packages(Path(__file__).parent / "node") / "node_modules/axe-core/axe.min.js").read_text()
    talk.set_scheme(scheme)
    press(talk, "Add a lane")
    ask(talk, "markdown")
    wait_for_turns(talk, 2)
    talk.fill("#draft", "and more")
    talk.evaluate(f"{axe}; 0")
    found = "axe.run().then(({ violations }) => violations.map((one) => [one.id, one.nodes[0].html]))"
    assert not talk.evaluate(found)
    talk.fill("[aria-label='Copy as']", "curl")
    assert not talk.evaluate(found)
