"""Packages from npm as their pages show them: each page is one program."""

from typing import Any

import pytest

from tests.clients.coding.client_runner import Client
from tests.clients.coding.recording_proxy import Tap
from tests.clients.sdk_pages.client_pages import blocks

pytestmark = [pytest.mark.real_client, pytest.mark.needs("node"), pytest.mark.timeout(700)]

SUNNY = "It is sunny in Oslo.\n"
PEOPLE = "Some 700,000.\n"  # only a model that knows which city was spoken of says so
_BETWEEN = "\x1e"


def printed(page: str, client: Client, tap: Tap) -> list[str]:
    """By each block of the page's program."""
    ran = client.script(f"\nprocess.stdout.write({_BETWEEN!r});\n".join(blocks(page, "js", port=tap.port)))
    assert ran.code == 0, str(ran)
    return ran.out.split(_BETWEEN)


def references(body: Any) -> list[str]:
    """What kinds of items are referred to."""
    return [item["id"].partition("_")[0] for item in body["input"] if item.get("type") == "item_reference"]


@pytest.mark.shows("I.14")
def test_the_ai_sdk_prints_what_its_page_says(client: Client, tap: Tap) -> None:
    plain, streamed, tools, thoughts, going_on, unstored, shaped = printed("ai-sdk.md", client, tap)
    assert (plain, streamed, shaped) == ("Oslo.\n", "Oslo. (stop)\n", "Oslo 700000\n")
    assert (tools, unstored, going_on) == (SUNNY * 2, SUNNY, PEOPLE)
    assert thoughts == f"I do not know, so I ask. → {SUNNY}"


@pytest.mark.shows("I.14")
def test_the_ai_sdk_refers_to_stored_items_and_carries_sealed_thoughts(client: Client, tap: Tap) -> None:
    printed("ai-sdk.md", client, tap)
    bodies = tap.bodies()
    assert [body for body in bodies if "previous_response_id" in body] == []
    assert sorted(references(body) for body in bodies if references(body)) == [["msg"], ["rs"], ["rs"], ["rs"]]
    sealed = [item for body in bodies for item in body["input"] if item.get("type") == "reasoning"]
    assert [bool(item["encrypted_content"]) for item in sealed] == [True]


@pytest.mark.shows("I.11")
def test_the_openai_package_prints_what_its_page_says(client: Client, tap: Tap) -> None:
    plain, streamed, tools, connected, lanes = printed("openai-node.md", client, tap)
    assert (plain, streamed, tools) == ("Oslo.\n", "Oslo. (completed)\n", SUNNY)
    assert connected == f"Oslo.\n{PEOPLE}"
    assert lanes == "[ 'Oslo.', 'Stockholm.' ]\n"


def test_the_openai_package_warms_up_goes_on_and_has_lanes_on_one_socket(client: Client, tap: Tap) -> None:
    printed("openai-node.md", client, tap)
    (upgrade,) = tap.upgrades()
    warm, first, second, *lanes = upgrade.messages
    made = [event["response"]["id"] for event in upgrade.heard if event["type"] == "response.completed"]
    assert (warm["generate"], warm.get("previous_response_id")) == (False, None)
    assert [first["previous_response_id"], second["previous_response_id"]] == made[:2]
    assert [message["stream_id"] for message in lanes] == ["Norway", "Sweden"]
    assert {event.get("stream_id") for event in upgrade.heard} == {None, "Norway", "Sweden"}


@pytest.mark.shows("I.14")
def test_the_agents_sdk_prints_what_its_page_says(client: Client, tap: Tap) -> None:
    plain, streamed, tools, going_on, connected = printed("agents-js.md", client, tap)
    assert (plain, streamed, tools, going_on) == ("Oslo.\n", "Oslo.\n", SUNNY, PEOPLE)
    assert connected == SUNNY + PEOPLE
    (upgrade,) = tap.upgrades()
    first, called, last = upgrade.messages
    made = [event["response"]["id"] for event in upgrade.heard if event["type"] == "response.completed"]
    assert [item["type"] for item in called["input"][-2:]] == ["function_call", "function_call_output"]
    assert (first.get("previous_response_id"), last["previous_response_id"]) == (None, made[1])
