"""Wire, in a browser: events are listed, filtered, read again from any of them, replayed, taken up after a break."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.chromium import Browser, Page
from tests.support.server_process import ServerProcess, run_server
from tests.ui.conftest import REPLIES

pytestmark = pytest.mark.needs("chromium")

ROWS = "document.querySelectorAll('event-list [role=option]').length"


def create_response(server: ServerProcess, text: str) -> str:
    return str(json.loads(server.post({"model": "fake", "input": text})[1])["id"])


def press_button(page: Page, text: str) -> None:
    find = f"[...document.querySelectorAll('button')].find((one) => one.textContent.trim() === {json.dumps(text)})"
    page.wait_for(find)
    page.evaluate(f"{find}.click()")


@pytest.mark.shows("H7.7")
def test_every_event_of_a_stored_response_is_listed(page: Page, server: ServerProcess) -> None:
    response_id = create_response(server, "markdown")
    page.open(f"{server.url}/ui/wire/{response_id}")
    page.wait_for_text("ended")
    body = server.get(f"/v1/responses/{response_id}?stream=true")[1].decode()
    types = [
        json.loads(line[6:])["type"].removeprefix("response.") for line in body.splitlines() if line[:7] == "data: {"
    ]
    assert page.evaluate("[...document.querySelectorAll('event-list .type')].map((one) => one.textContent)") == types
    page.click("event-list [role=option]")
    page.wait_for("document.querySelector('.detail pre').textContent.includes('response.created')")
    first = body.partition("\n\n")[0]
    assert page.evaluate("document.querySelector('.detail details pre').textContent").strip() == first
    page.evaluate("document.querySelector('event-list').focus()")
    page.press("ArrowDown")
    page.wait_for("document.querySelector('[aria-selected=true] .number').textContent === '1'")


@pytest.mark.shows("H7.7")
def test_filters_are_in_the_address(page: Page, server: ServerProcess) -> None:
    page.open(f"{server.url}/ui/wire/{create_response(server, 'markdown')}")
    page.wait_for_text("ended")
    page.fill("[name=type]", "response.output_text.delta")
    page.wait_for(f"{ROWS} === 3 && location.search === '?type=response.output_text.delta'")
    page.open(page.evaluate("location.href"))
    page.wait_for(f"{ROWS} === 3")
    page.fill("[name=type]", "")
    page.wait_for(f"{ROWS} > 10")
    page.evaluate("(() => { const one = document.querySelector('[name=item]'); one.selectedIndex = 1;"
                  "one.dispatchEvent(new Event('change')); })()")  # fmt: skip
    page.wait_for("location.search.startsWith('?item=rs_')")
    assert page.evaluate(
        "[...document.querySelectorAll('.event')].every((one) => one.style.borderLeftColor === 'var(--c0)')"
    )


@pytest.mark.shows("H7.7")
def test_reading_again_from_an_event_gives_equal_bytes(page: Page, server: ServerProcess) -> None:
    page.open(f"{server.url}/ui/wire/{create_response(server, 'slow')}")
    page.wait_for_text("ended")
    count = int(page.evaluate(ROWS))
    page.evaluate("document.querySelectorAll('event-list [role=option]')[4].click()")
    press_button(page, "Resume from here")
    page.wait_for_text(f"{count - 5} of {count - 5} events after 4 equal, byte for byte")
    assert page.evaluate("document.querySelector('.comparison p').className") == "same"


@pytest.mark.shows("H7.7")
def test_a_stream_is_replayed_in_its_own_time(page: Page) -> None:
    page.fill("#draft", "slow, please")
    page.click("form.composer button.primary")
    page.wait_for("document.querySelector('.figures a')")
    page.click(".figures a")
    page.wait_for_text("ended")
    press_button(page, "1×")
    page.wait_for(f"{ROWS} < 8 && document.querySelector('.result').innerText === 'It begins'")
    press_button(page, "at once")
    page.wait_for("document.querySelector('.result').innerText.endsWith('ends.')")
    press_button(page, "10×")
    page.wait_for(f"{ROWS} < 8")
    page.wait_for("document.querySelector('.result').innerText.endsWith('ends.')")


@pytest.mark.shows("H7.9")
def test_a_dropped_connection_is_taken_up_again(page: Page) -> None:
    page.fill("#draft", "slow, please")
    page.click("form.composer button.primary")
    page.wait_for_text("It begins")
    page.click("a[href='/ui/wire']")
    press_button(page, "Drop the connection")
    page.wait_for_text("taken up again")
    page.wait_for_text("It begins and goes on and ends.")
    page.wait_for_text("ended")
    shown = page.evaluate("[...document.querySelectorAll('event-list .number')].map((one) => Number(one.textContent))")
    assert shown == list(range(len(shown)))


@pytest.mark.shows("H7.9")
def test_a_stream_survives_the_death_of_the_server(browser: Browser, tmp_path: Path) -> None:
    """The server is killed in mid-stream and started again at the same port: the page reads on to the end."""
    flags = ["--engine", "fake", "--fake-script", str(REPLIES), "--store", str(tmp_path / "store.db")]
    with contextlib.ExitStack() as stack, browser.new_page() as page:
        server = stack.enter_context(run_server(*flags, "--lease-seconds", "2"))
        page.open(f"{server.url}/")
        page.wait_for("document.querySelector('#model option')")
        page.fill("#draft", "endless")
        page.click("form.composer button.primary")
        page.wait_for_text("Without")
        server.process.kill()
        page.wait_for_text("taking the stream up again")
        command = [str(Path(sys.executable).with_name("antiphon")), "serve", "--port", str(server.port), *flags]
        again = subprocess.Popen(
            [*command, "--lease-seconds", "2"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        stack.callback(again.wait, 60)
        stack.callback(again.terminate)
        page.wait_for("document.querySelector('.figures')")
        assert "resumed" in page.text()
        page.check(server.url, allowed=["ERR_", "network: Failed to load resource"])
