"""Items as they are kept: every kind gets an id of ours, and is what OpenAI's types say of items that come back."""

import json
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from antiphon.ids import ItemIds, home, is_item_id, new_id
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.decoding.stored_items import PREFIXES, keep
from antiphon.protocol.types.items import InputItem, ItemReference
from tests.oracles.responses import check_conversation_item, check_input_items
from tests.protocol.types.samples import fullest, members, smallest, tag

# Never answers of ours: a reference is resolved, a trigger is no item of OpenAI's lists.
KINDS = [cls for cls in members(InputItem) if tag(cls) not in ("item_reference", "compaction_trigger")]


def kept(*items: dict[str, Any]) -> list[dict[str, Any]]:
    read = msgspec.convert(list(items), list[InputItem])
    return [json.loads(encode(item)) for item in keep(read, new_id)]


def sample(cls: type[Struct], *, full: bool) -> dict[str, Any]:
    made = fullest(cls) if full else smallest(cls)
    if tag(cls) == "message":  # a list of all parts is another test's business
        made |= {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}
        made.pop("phase", None)  # an assistant's
    if tag(cls) == "web_search_call":
        made["action"] = {"type": "search", "query": "q"}
    return made


@pytest.mark.parametrize("full", [False, True], ids=["smallest", "fullest"])
@pytest.mark.parametrize("cls", KINDS, ids=tag)
@pytest.mark.shows("B2.2")
def test_every_kind_of_item_comes_back_as_openai_types_it(cls: type[Struct], full: bool) -> None:
    (item,) = kept(sample(cls, full=full))
    assert is_item_id(item["id"])
    assert item["id"].startswith(PREFIXES.get(cls, "item") + "_")
    check_conversation_item(item)
    check_input_items({"object": "list", "data": [item], "first_id": "", "last_id": "", "has_more": False})


def test_an_assistants_message_comes_back_too() -> None:
    (item,) = kept({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]})
    assert item["status"] == "completed"
    check_conversation_item(item)
    check_input_items({"object": "list", "data": [item], "first_id": "", "last_id": "", "has_more": False})


def test_a_status_that_was_sent_stays() -> None:
    (item,) = kept({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "status": "incomplete"})
    assert item["status"] == "incomplete"


def test_ids_of_clients_are_replaced_and_their_call_ids_are_not() -> None:
    call, output = kept(
        {"type": "function_call", "id": "fc_mine", "call_id": "call_mine", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "id": "o", "call_id": "call_mine", "output": "1"},
    )
    assert "mine" not in call["id"]
    assert call["call_id"] == output["call_id"] == "call_mine"


def test_an_approval_follows_its_request_to_the_new_id() -> None:
    request, answer, call = kept(
        {"type": "mcp_approval_request", "id": "mcpr_mine", "server_label": "s", "name": "n", "arguments": "{}"},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_mine", "approve": True},
        {"type": "mcp_call", "server_label": "s", "name": "n", "arguments": "{}", "approval_request_id": "mcpr_mine"},
    )
    assert answer["approval_request_id"] == call["approval_request_id"] == request["id"]


def test_a_request_of_ours_that_is_sent_back_keeps_its_id() -> None:
    ours = ItemIds(new_id("resp"))("mcpr")
    asked = {"type": "mcp_approval_request", "id": ours, "server_label": "s", "name": "n", "arguments": "{}"}
    request, answer = kept(asked, {"type": "mcp_approval_response", "approval_request_id": ours, "approve": True})
    assert answer["approval_request_id"] == request["id"] == ours


def test_an_id_stands_for_one_item_of_a_list() -> None:
    ours = ItemIds(new_id("resp"))("mcpr")
    asked = {"type": "mcp_approval_request", "id": ours, "server_label": "s", "name": "n", "arguments": "{}"}
    first, second = kept(asked, asked)
    assert first["id"] == ours
    assert second["id"] != ours


@pytest.mark.parametrize("kind", ["message", "mcp_approval_request"])
def test_no_other_item_has_an_id_of_the_clients_choice(kind: str) -> None:
    theirs = "msg_" + "0" * 37 if kind == "mcp_approval_request" else ItemIds(new_id("resp"))("mcpr")
    asked = {"type": kind, "id": theirs, "role": "user", "content": []}
    (item,) = kept({**asked, "server_label": "s", "name": "n", "arguments": "{}"})
    assert item["id"] != theirs


def test_an_approval_of_a_request_elsewhere_is_left_alone() -> None:
    (answer,) = kept({"type": "mcp_approval_response", "approval_request_id": "mcpr_other", "approve": True})
    assert answer["approval_request_id"] == "mcpr_other"


@pytest.mark.parametrize(("call", "expected"), [(True, "call_1"), (False, "lsh_1")])
def test_a_shells_output_that_names_its_call_by_id_names_it_by_call_id(call: bool, expected: str) -> None:
    calls = [{"type": "local_shell_call", "id": "lsh_1", "call_id": "call_1", "action": {"command": ["ls"]}}]
    *_, output = kept(*calls * call, {"type": "local_shell_call_output", "id": "lsh_1", "output": "x"})
    assert output["call_id"] == expected
    assert output["id"] != "lsh_1"


def test_a_null_for_an_approval_stays_null() -> None:
    (call,) = kept({"type": "mcp_call", "server_label": "s", "name": "n", "arguments": "{}"})
    assert call["approval_request_id"] is None


def test_what_was_given_is_not_changed() -> None:
    items = msgspec.convert([{"type": "message", "role": "user", "content": []}], list[InputItem])
    before = encode(items)
    keep(items, new_id)
    assert encode(items) == before


def test_ids_may_be_those_of_a_response() -> None:
    response_id = new_id("resp")
    (item,) = keep([ItemReference(id="x")], ItemIds(response_id, "input"))
    assert home(str(item.id)) == response_id
