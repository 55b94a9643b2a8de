"""Items, in a browser: the tree of responses, the difference of two branches, and what is continued from them."""

import json
from typing import Any

import pytest

from tests.support.chromium import Page
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.needs("chromium")

TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}


def read_response(server: ServerProcess, response_id: str) -> dict[str, Any]:
    return dict(json.loads(server.get(f"/v1/responses/{response_id}")[1]))


def create_response(server: ServerProcess, text: str | list[Any], **fields: Any) -> str:
    status, body = server.post({"model": "fake", "input": text, **fields})
    assert status == 200, body
    return str(json.loads(body)["id"])


def create_tree(server: ServerProcess) -> list[str]:
    """Create a root with two branches, and a leaf in the first of them."""
    root = create_response(server, "the root")
    left = create_response(server, "weather on the left", previous_response_id=root, tools=[TOOL])
    right = create_response(server, "on the right", previous_response_id=root)
    call_id = read_response(server, left)["output"][-1]["call_id"]
    output = {"type": "function_call_output", "call_id": call_id, "output": "rain"}
    return [root, left, right, create_response(server, [output], previous_response_id=left)]


@pytest.mark.shows("H7.13")
def test_the_tree_shows_branches_calls_and_items(page: Page, server: ServerProcess) -> None:
    *_, right, leaf = create_tree(server)
    page.open(f"{server.url}/ui/items/{leaf}")
    page.wait_for("document.querySelectorAll('.tree a[href^=\"/ui/items/\"]:not([href*=with])').length === 3")
    page.wait_for_text("weather on the left")
    page.wait_for_text("Take an umbrella.")
    nested = "[...document.querySelectorAll('.tree ul ul')].map((one) => one.querySelectorAll('li').length)"
    assert sorted(page.evaluate(nested)) == [1, 2]
    assert "function call" in page.text()
    assert page.evaluate("document.querySelector('.tree b').textContent") == "function_call_output"
    page.click(f".tree a[href='/ui/items/{right}']")
    page.wait_for_text("You said: on the right")
    assert page.evaluate("location.pathname") == f"/ui/items/{right}"


@pytest.mark.shows("H7.13")
def test_two_branches_are_compared_from_where_they_part(page: Page, server: ServerProcess) -> None:
    *_, right, leaf = create_tree(server)
    page.open(f"{server.url}/ui/items/{leaf}")
    page.wait_for(f"document.querySelector(\"a[href='/ui/items/{leaf}?with={right}']\")")
    page.click(f"a[href='/ui/items/{leaf}?with={right}']")
    page.wait_for_text("Responses in common: 1, items: 0")
    page.wait_for("document.querySelectorAll('.detail .detail').length === 2")
    for at, text in enumerate(["weather on the left", "You said: on the right"]):
        page.wait_for(f"document.querySelectorAll('.detail .detail')[{at}].innerText.includes('{text}')")
    page.wait_for_text("Take an umbrella.")
    sides = page.evaluate("[...document.querySelectorAll('.detail .detail')].map((one) => one.innerText)")
    assert "the root" not in sides[0] + sides[1]
    root = read_response(server, right)["previous_response_id"]
    same = create_response(server, "on the right", previous_response_id=root)
    page.open(f"{server.url}/ui/items/{right}?with={same}")
    page.wait_for_text("Responses in common: 1, items: 2")


@pytest.mark.shows("H7.13")
def test_any_response_is_continued_in_talk(page: Page, server: ServerProcess) -> None:
    root, *_ = create_tree(server)
    page.open(f"{server.url}/ui/items/{root}")
    page.wait_for_text("You said: the root")
    page.click(".detail .primary")
    page.wait_for_text("You said: the root")
    page.fill("#draft", "a third branch")
    page.click("form.composer button.primary")
    page.wait_for_text("You said: a third branch")
    page.wait_for(f"location.pathname !== '/ui/talk/{root}'")
    created = read_response(server, page.evaluate("location.pathname.split('/').pop()"))
    assert created["previous_response_id"] == root
    page.click("a[href='/ui/items']")
    page.wait_for_text("5 responses")
    page.wait_for_text("a third branch")


@pytest.mark.shows("H7.13")
def test_a_response_of_a_conversation_is_forked_with_what_came_before_it(page: Page, server: ServerProcess) -> None:
    conversation = json.loads(server.send("POST", "/v1/conversations", {})[1])["id"]
    _, second, third = [create_response(server, text, conversation=conversation) for text in ("one", "two", "three")]
    page.open(f"{server.url}/ui/items/{second}")
    page.wait_for_text("3 responses")
    page.wait_for_text("You said: two")
    page.click(".detail .primary")
    page.wait_for_text("You said: two")
    assert "You said: one" in page.text()
    assert "three" not in page.text()
    page.fill("#draft", "four")
    page.click("form.composer button.primary")
    page.wait_for_text("You said: four")
    page.wait_for(f"location.pathname !== '/ui/talk/{second}'")
    name = page.evaluate("location.pathname.split('/').pop()")
    items = json.loads(server.get(f"/v1/responses/{name}/input_items?order=asc")[1])["data"]
    texts = [item["content"][0]["text"] for item in items]
    assert texts == ["one", "You said: one", "two", "You said: two", "four"]
    assert third not in page.text()


@pytest.mark.shows("H7.8")
def test_hostile_items_are_shown_as_text(page: Page, server: ServerProcess) -> None:
    attack = "<img src=x onerror=window.hacked=1>"
    root = create_response(server, attack)
    leaf = create_response(server, f"hostile {attack}", previous_response_id=root)
    page.open(f"{server.url}/ui/items/{leaf}?with={root}")
    page.wait_for_text("<script>window.hacked=1</script>")
    page.wait_for(f"document.querySelector('.tree').innerText.includes({json.dumps(attack)})")
    assert not page.evaluate("window.hacked !== undefined || document.querySelector('main img, main script') !== null")
