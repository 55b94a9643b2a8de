"""Packages from npm, run as their pages show: the blocks of each page are one program."""

from typing import Any

import pytest

from tests.clients.coding.client_runner import Client
from tests.clients.coding.recording_proxy import RecordingProxy
from tests.clients.sdk_pages.client_pages import extract_blocks

pytestmark = [pytest.mark.real_client, pytest.mark.needs("node"), pytest.mark.timeout(700)]

SUNNY = "It is sunny in Oslo.\n"
PEOPLE = "Some 700,000.\n"  # the script answers this only if the prompt names the city
_SEPARATOR = "\x1e"


def run_page(page: str, client: Client, proxy: RecordingProxy) -> list[str]:
    """Run the program of the page; return the output of each of its blocks."""
    ran = client.run_script(
        f"\nprocess.stdout.write({_SEPARATOR!r});\n".join(extract_blocks(page, "js", port=proxy.port))
    )
    assert ran.code == 0, str(ran)
    return ran.out.split(_SEPARATOR)


def get_reference_prefixes(body: Any) -> list[str]:
    """Return the id prefixes of the referenced items."""
    return [item["id"].partition("_")[0] for item in body["input"] if item.get("type") == "item_reference"]


@pytest.mark.shows("I.14")
@pytest.mark.uses("ai-sdk", "answers", "streaming", "tools", "structured output", "reasoning", "stored state")
def test_the_ai_sdk_page_prints_the_scripted_answers(client: Client, proxy: RecordingProxy) -> None:
    plain, streamed, tools, reasoning, continued, unstored, shaped = run_page("ai-sdk.md", client, proxy)
    assert (plain, streamed, shaped) == ("Oslo.\n", "Oslo. (stop)\n", "Oslo 700000\n")
    assert (tools, unstored, continued) == (SUNNY * 2, SUNNY, PEOPLE)
    assert reasoning == f"I do not know, so I ask. → {SUNNY}"


@pytest.mark.shows("I.14")
def test_the_ai_sdk_references_stored_items_and_returns_encrypted_reasoning(
    client: Client, proxy: RecordingProxy
) -> None:
    run_page("ai-sdk.md", client, proxy)
    bodies = proxy.get_bodies()
    assert [body for body in bodies if "previous_response_id" in body] == []
    assert sorted(get_reference_prefixes(body) for body in bodies if get_reference_prefixes(body)) == [
        ["msg"],
        ["rs"],
        ["rs"],
        ["rs"],
    ]
    reasoning_items = [item for body in bodies for item in body["input"] if item.get("type") == "reasoning"]
    assert [bool(item["encrypted_content"]) for item in reasoning_items] == [True]


@pytest.mark.shows("I.11")
@pytest.mark.uses("openai-node", "answers", "streaming", "tools", "WebSocket")
def test_the_openai_page_prints_the_scripted_answers(client: Client, proxy: RecordingProxy) -> None:
    plain, streamed, tools, connected, lanes = run_page("openai-node.md", client, proxy)
    assert (plain, streamed, tools) == ("Oslo.\n", "Oslo. (completed)\n", SUNNY)
    assert connected == f"Oslo.\n{PEOPLE}"
    assert lanes == "[ 'Oslo.', 'Stockholm.' ]\n"


def test_the_openai_page_warms_up_continues_and_uses_lanes_on_one_connection(
    client: Client, proxy: RecordingProxy
) -> None:
    run_page("openai-node.md", client, proxy)
    (upgrade,) = proxy.get_upgrades()
    warm, first, second, *lanes = upgrade.messages
    ids = [event["response"]["id"] for event in upgrade.received if event["type"] == "response.completed"]
    assert (warm["generate"], warm.get("previous_response_id")) == (False, None)
    assert [first["previous_response_id"], second["previous_response_id"]] == ids[:2]
    assert [message["stream_id"] for message in lanes] == ["Norway", "Sweden"]
    assert {event.get("stream_id") for event in upgrade.received} == {None, "Norway", "Sweden"}


@pytest.mark.shows("I.14")
@pytest.mark.uses("agents-js", "answers", "streaming", "tools", "stored state", "WebSocket")
def test_the_agents_sdk_page_prints_the_scripted_answers(client: Client, proxy: RecordingProxy) -> None:
    plain, streamed, tools, continued, connected = run_page("agents-js.md", client, proxy)
    assert (plain, streamed, tools, continued) == ("Oslo.\n", "Oslo.\n", SUNNY, PEOPLE)
    assert connected == SUNNY + PEOPLE
    (upgrade,) = proxy.get_upgrades()
    first, called, last = upgrade.messages
    ids = [event["response"]["id"] for event in upgrade.received if event["type"] == "response.completed"]
    assert [item["type"] for item in called["input"][-2:]] == ["function_call", "function_call_output"]
    assert (first.get("previous_response_id"), last["previous_response_id"]) == (None, ids[1])
