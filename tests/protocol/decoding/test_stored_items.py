"""Items as they are stored: every type gets an id of ours and matches OpenAI's type of returned items."""

import json
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from antiphon.ids import ItemIds, is_item_id, new_id, parse_response_id
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.decoding.stored_items import PREFIXES, assign_ids
from antiphon.protocol.types.items import InputItem, ItemReference
from tests.oracles.responses import check_conversation_item, check_input_items
from tests.protocol.types.samples import get_tag, list_members, make_full, make_minimal

# Never returned by the server: a reference is resolved, and a trigger is not in OpenAI's lists of items.
ITEM_TYPES = [cls for cls in list_members(InputItem) if get_tag(cls) not in ("item_reference", "compaction_trigger")]


def store_items(*items: dict[str, Any]) -> list[dict[str, Any]]:
    parsed = msgspec.convert(list(items), list[InputItem])
    return [json.loads(encode(item)) for item in assign_ids(parsed, new_id)]


def make_sample(cls: type[Struct], *, full: bool) -> dict[str, Any]:
    item = make_full(cls) if full else make_minimal(cls)
    if get_tag(cls) == "message":  # a list of all parts is covered by another test
        item |= {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}
        item.pop("phase", None)  # only for assistant messages
    if get_tag(cls) == "web_search_call":
        item["action"] = {"type": "search", "query": "q"}
    return item


@pytest.mark.parametrize("full", [False, True], ids=["smallest", "fullest"])
@pytest.mark.parametrize("cls", ITEM_TYPES, ids=get_tag)
@pytest.mark.shows("B2.2")
def test_every_stored_item_matches_its_openai_type(cls: type[Struct], full: bool) -> None:
    (item,) = store_items(make_sample(cls, full=full))
    assert is_item_id(item["id"])
    assert item["id"].startswith(PREFIXES.get(cls, "item") + "_")
    check_conversation_item(item)
    check_input_items({"object": "list", "data": [item], "first_id": "", "last_id": "", "has_more": False})


def test_a_stored_assistant_message_matches_its_openai_type() -> None:
    (item,) = store_items({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]})
    assert item["status"] == "completed"
    check_conversation_item(item)
    check_input_items({"object": "list", "data": [item], "first_id": "", "last_id": "", "has_more": False})


def test_a_status_that_was_sent_is_preserved() -> None:
    (item,) = store_items(
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "status": "incomplete"}
    )
    assert item["status"] == "incomplete"


def test_client_ids_are_replaced_and_call_ids_are_preserved() -> None:
    call, output = store_items(
        {"type": "function_call", "id": "fc_mine", "call_id": "call_mine", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "id": "o", "call_id": "call_mine", "output": "1"},
    )
    assert "mine" not in call["id"]
    assert call["call_id"] == output["call_id"] == "call_mine"


def test_an_approval_refers_to_the_new_id_of_its_request() -> None:
    request, answer, call = store_items(
        {"type": "mcp_approval_request", "id": "mcpr_mine", "server_label": "s", "name": "n", "arguments": "{}"},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_mine", "approve": True},
        {"type": "mcp_call", "server_label": "s", "name": "n", "arguments": "{}", "approval_request_id": "mcpr_mine"},
    )
    assert answer["approval_request_id"] == call["approval_request_id"] == request["id"]


def test_an_approval_request_of_the_server_preserves_its_id() -> None:
    ours = ItemIds(new_id("resp"))("mcpr")
    sent = {"type": "mcp_approval_request", "id": ours, "server_label": "s", "name": "n", "arguments": "{}"}
    request, answer = store_items(sent, {"type": "mcp_approval_response", "approval_request_id": ours, "approve": True})
    assert answer["approval_request_id"] == request["id"] == ours


def test_an_id_is_used_for_only_one_item() -> None:
    ours = ItemIds(new_id("resp"))("mcpr")
    sent = {"type": "mcp_approval_request", "id": ours, "server_label": "s", "name": "n", "arguments": "{}"}
    first, second = store_items(sent, sent)
    assert first["id"] == ours
    assert second["id"] != ours


@pytest.mark.parametrize("kind", ["message", "mcp_approval_request"])
def test_no_other_item_preserves_the_id_of_the_client(kind: str) -> None:
    theirs = "msg_" + "0" * 37 if kind == "mcp_approval_request" else ItemIds(new_id("resp"))("mcpr")
    sent = {"type": kind, "id": theirs, "role": "user", "content": []}
    (item,) = store_items({**sent, "server_label": "s", "name": "n", "arguments": "{}"})
    assert item["id"] != theirs


def test_an_approval_of_an_unknown_request_is_unchanged() -> None:
    (answer,) = store_items({"type": "mcp_approval_response", "approval_request_id": "mcpr_other", "approve": True})
    assert answer["approval_request_id"] == "mcpr_other"


@pytest.mark.parametrize(("call", "expected"), [(True, "call_1"), (False, "lsh_1")])
def test_a_shell_output_that_refers_to_an_item_id_gets_the_call_id(call: bool, expected: str) -> None:
    calls = [{"type": "local_shell_call", "id": "lsh_1", "call_id": "call_1", "action": {"command": ["ls"]}}]
    *_, output = store_items(*calls * call, {"type": "local_shell_call_output", "id": "lsh_1", "output": "x"})
    assert output["call_id"] == expected
    assert output["id"] != "lsh_1"


def test_a_null_approval_request_id_stays_null() -> None:
    (call,) = store_items({"type": "mcp_call", "server_label": "s", "name": "n", "arguments": "{}"})
    assert call["approval_request_id"] is None


def test_the_passed_items_are_not_changed() -> None:
    items = msgspec.convert([{"type": "message", "role": "user", "content": []}], list[InputItem])
    before = encode(items)
    assign_ids(items, new_id)
    assert encode(items) == before


def test_item_ids_may_contain_their_response_id() -> None:
    response_id = new_id("resp")
    (item,) = assign_ids([ItemReference(id="x")], ItemIds(response_id, "input"))
    assert parse_response_id(str(item.id)) == response_id
