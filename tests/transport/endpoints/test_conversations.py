"""Tests /v1/conversations on the complete application; the openai package's types check every reply.

Covers `service/conversations.py`.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from antiphon.ids import new_id
from tests.api.app import ApiServer, run_api
from tests.oracles.responses import check_conversation, check_conversation_item, check_conversation_items
from tests.support.asgi_client import AsgiResponse

pytestmark = pytest.mark.anyio
HELLO = {"role": "user", "content": "hello"}


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with run_api() as server:
        yield server


def read_text(item: dict[str, Any]) -> str:
    return str(item["content"][0]["text"])


def make_user_messages(*texts: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content} for content in texts]


async def list_items(server: ApiServer, conversation_id: str, query: str = "") -> Any:
    answer = await server.get(f"conversations/{conversation_id}/items{query}")
    assert answer.status == 200, answer.body
    page = answer.json()
    check_conversation_items(page)
    return page


@pytest.mark.shows("B.14", "B.15")
async def test_a_conversation_is_created_and_retrieved(server: ApiServer) -> None:
    conversation = await server.post_ok("conversations", {"items": [HELLO], "metadata": {"topic": "demo"}})
    check_conversation(conversation)
    assert conversation["id"].startswith("conv_")
    assert conversation["metadata"] == {"topic": "demo"}
    assert (await server.get(f"conversations/{conversation['id']}")).json() == conversation
    assert [read_text(item) for item in (await list_items(server, conversation["id"]))["data"]] == ["hello"]


@pytest.mark.parametrize("body", [None, b"{}", b'{"items": null, "metadata": null}'])
async def test_a_conversation_can_be_created_without_fields(server: ApiServer, body: bytes | None) -> None:
    answer = await server.post("conversations", body)
    assert answer.status == 200
    check_conversation(answer.json())
    assert answer.json()["metadata"] == {}


@pytest.mark.shows("B.16")
async def test_metadata_is_merged_and_null_deletes_a_key(server: ApiServer) -> None:
    conversation = await server.post_ok("conversations", {"metadata": {"project": "p", "user": "u"}})
    path = f"conversations/{conversation['id']}"
    changed = await server.post_ok(path, {"metadata": {"status": "resolved", "project": None, "absent": None}})
    check_conversation(changed)
    assert changed == {**conversation, "metadata": {"user": "u", "status": "resolved"}}
    assert (await server.get(path)).json() == changed
    assert await server.post_ok(path, {"metadata": None}) == changed


async def test_merged_metadata_stays_within_its_limit(server: ApiServer) -> None:
    conversation = await server.post_ok("conversations", {"metadata": {f"k{number}": "v" for number in range(10)}})
    path = f"conversations/{conversation['id']}"
    answer = await server.post(path, {"metadata": {f"l{number}": "v" for number in range(7)}})
    assert (answer.status, answer.error["param"]) == (400, "metadata")
    assert (await server.get(path)).json() == conversation
    swapped = {"k0": None, **{f"l{number}": "v" for number in range(7)}}
    assert len((await server.post_ok(path, {"metadata": swapped}))["metadata"]) == 16


@pytest.mark.shows("B.17")
async def test_a_deleted_conversation_is_gone_but_its_items_can_be_referenced(server: ApiServer) -> None:
    conversation = await server.post_ok("conversations", {"items": [HELLO]})
    (item,) = (await list_items(server, conversation["id"]))["data"]
    deleted = await server.delete(f"conversations/{conversation['id']}")
    assert deleted.json() == {"id": conversation["id"], "object": "conversation.deleted", "deleted": True}
    check_conversation(deleted.json())
    for path in ("", "/items", f"/items/{item['id']}"):
        answer = await server.get(f"conversations/{conversation['id']}{path}")
        assert (answer.status, answer.error["type"]) == (404, "not_found_error")
    assert (await server.delete(f"conversations/{conversation['id']}")).status == 404
    other = await server.post_ok("conversations", {"items": [{"type": "item_reference", "id": item["id"]}]})
    assert (await list_items(server, other["id"]))["data"] == [item]


@pytest.mark.shows("B.18", "B.20")
async def test_items_are_added_and_each_can_be_fetched(server: ApiServer) -> None:
    conversation = await server.post_ok("conversations", {})
    path = f"conversations/{conversation['id']}/items"
    sent = [HELLO, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "mine"}]
    added = await server.post_ok(path, {"items": sent})
    check_conversation_items(added)
    first, second = added["data"]
    assert (added["first_id"], added["last_id"], added["has_more"]) == (first["id"], second["id"], False)
    assert (first["status"], second["status"]) == ("completed", "completed")
    assert second["id"].startswith("fc_")
    assert second["call_id"] == "c"
    for item in (first, second):
        answer = await server.get(f"{path}/{item['id']}")
        assert answer.json() == item
        check_conversation_item(answer.json())


@pytest.mark.shows("B.18")
async def test_at_most_twenty_items_are_accepted_per_request(server: ApiServer) -> None:
    conversation = await server.post_ok("conversations", {})
    path = f"conversations/{conversation['id']}/items"
    assert len((await server.post_ok(path, {"items": [HELLO] * 20}))["data"]) == 20
    for endpoint in ("conversations", path):
        answer = await server.post(endpoint, {"items": [HELLO] * 21})
        assert (answer.status, answer.error["param"]) == (400, "items")
    assert len((await list_items(server, conversation["id"], "?limit=100"))["data"]) == 20


async def test_no_items_yield_an_empty_list(server: ApiServer) -> None:
    conversation = await server.post_ok("conversations", {})
    empty = {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}
    assert await server.post_ok(f"conversations/{conversation['id']}/items", {"items": []}) == empty
    assert await list_items(server, conversation["id"]) == empty


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
@pytest.mark.shows("B.19")
async def test_pages_neither_skip_nor_repeat_items(server: ApiServer, order: str, limit: int) -> None:
    texts = [str(number) for number in range(7)]
    conversation = await server.post_ok("conversations", {"items": make_user_messages(*texts)})
    seen: list[str] = []
    query, more = f"?limit={limit}&order={order}", True
    while more:
        page = await list_items(server, conversation["id"], query)
        assert len(page["data"]) <= limit
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
        seen += [read_text(item) for item in page["data"]]
        query, more = f"?limit={limit}&order={order}&after={page['last_id']}", page["has_more"]
    assert seen == (texts if order == "asc" else texts[::-1])


@pytest.mark.shows("B.19")
async def test_a_default_page_has_twenty_items_newest_first(server: ApiServer) -> None:
    conversation = await server.post_ok("conversations", {"items": make_user_messages(*map(str, range(20)))})
    await server.post_ok(f"conversations/{conversation['id']}/items", {"items": make_user_messages("20", "21")})
    page = await list_items(server, conversation["id"])
    assert [read_text(item) for item in page["data"]] == [str(number) for number in range(21, 1, -1)]
    assert page["has_more"] is True


async def test_a_page_continues_after_a_deleted_item(server: ApiServer) -> None:
    conversation = await server.post_ok("conversations", {"items": make_user_messages("a", "b", "c")})
    page = await list_items(server, conversation["id"], "?order=asc&limit=1")
    await server.delete(f"conversations/{conversation['id']}/items/{page['last_id']}")
    remaining = await list_items(server, conversation["id"], f"?order=asc&after={page['last_id']}")
    assert [read_text(item) for item in remaining["data"]] == ["b", "c"]


@pytest.mark.shows("B.21", "B2.4")
async def test_an_item_is_deleted_from_one_conversation_only(server: ApiServer) -> None:
    one = await server.post_ok("conversations", {"items": make_user_messages("a", "b")})
    first = (await list_items(server, one["id"], "?order=asc"))["data"][0]
    other = await server.post_ok("conversations", {"items": [{"type": "item_reference", "id": first["id"]}]})
    answer = await server.delete(f"conversations/{one['id']}/items/{first['id']}")
    assert answer.json() == one
    assert [read_text(item) for item in (await list_items(server, one["id"]))["data"]] == ["b"]
    gone = await server.get(f"conversations/{one['id']}/items/{first['id']}")
    assert (gone.status, gone.error["param"]) == (404, "item_id")
    assert (await server.delete(f"conversations/{one['id']}/items/{first['id']}")).status == 404
    assert (await list_items(server, other["id"]))["data"] == [first]


@pytest.mark.shows("B2.3", "B.11")
async def test_a_reference_shares_an_item_of_a_response(server: ApiServer) -> None:
    reply = await server.create()
    (message,) = reply["output"]
    (input_item,) = (await server.get(f"responses/{reply['id']}/input_items")).json()["data"]
    conversation = await server.post_ok("conversations", {})
    references = [{"type": "item_reference", "id": input_item["id"]}, {"id": message["id"]}, HELLO]
    added = await server.post_ok(f"conversations/{conversation['id']}/items", {"items": references})
    check_conversation_items(added)
    assert [item["id"] for item in added["data"]][:2] == [input_item["id"], message["id"]]
    assert added["data"][1] == message
    assert (await server.get(f"conversations/{conversation['id']}/items/{message['id']}")).json() == message


@pytest.mark.parametrize("name", ["nothing", "msg_" + "0" * 32, "msg_" + "0" * 37, "msg_%00", "x" * 500])
@pytest.mark.shows("B2.3")
async def test_an_unresolved_reference_is_rejected_with_its_field(server: ApiServer, name: str) -> None:
    conversation = await server.post_ok("conversations", {})
    body = {"items": [HELLO, {"type": "item_reference", "id": name}]}
    for path in ("conversations", f"conversations/{conversation['id']}/items"):
        answer = await server.post(path, body)
        assert (answer.status, answer.error["param"]) == (400, "items[1].id")
    assert (await list_items(server, conversation["id"]))["data"] == []


PATHS = ("", "/items", "/items/msg_1")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.shows("B.24")
async def test_an_id_with_a_wrong_prefix_is_rejected(server: ApiServer, path: str) -> None:
    answer = await server.get(f"conversations/invalid-id{path}")
    assert answer.status == 400
    assert answer.error == {
        "message": "Invalid 'conversation_id': 'invalid-id'. Expected an ID that begins with 'conv_'.",
        "type": "invalid_request_error",
        "param": "conversation_id",
        "code": "invalid_conversation_id",
    }


@pytest.mark.parametrize("name", ["conv_", "conv_123", "conv_%2e%2e", "conv_" + "f" * 32, "conv_" + "0" * 4000])
async def test_every_operation_on_an_unknown_conversation_is_not_found(server: ApiServer, name: str) -> None:
    path = f"conversations/{name}"
    answers: list[AsgiResponse] = [await server.get(f"{path}{suffix}") for suffix in PATHS]
    answers += [await server.delete(path), await server.delete(f"{path}/items/msg_1")]
    answers += [await server.post(path, {"metadata": {}}), await server.post(f"{path}/items", {"items": [HELLO]})]
    for answer in answers:
        assert (answer.status, answer.error["type"]) == (404, "not_found_error")
        assert answer.error["param"] == "conversation_id"
        assert len(answer.body) < 500


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("order=sideways", "order"),
        ("after=nothing", "after"),
        ("after=" + new_id("msg"), "after"),
        ("include[]=everything", "include[0]"),
    ],
)
async def test_an_invalid_page_query_is_rejected(server: ApiServer, query: str, param: str) -> None:
    conversation = await server.post_ok("conversations", {"items": [HELLO]})
    answer = await server.get(f"conversations/{conversation['id']}/items?{query}")
    assert (answer.status, answer.error["param"]) == (400, param)


async def test_a_cursor_of_another_conversation_is_rejected(server: ApiServer) -> None:
    one = await server.post_ok("conversations", {"items": [HELLO]})
    other = await server.post_ok("conversations", {"items": [HELLO]})
    cursor = (await list_items(server, other["id"]))["last_id"]
    answer = await server.get(f"conversations/{one['id']}/items?after={cursor}")
    assert (answer.status, answer.error["param"]) == (400, "after")


async def test_every_include_is_accepted(server: ApiServer) -> None:
    conversation = await server.post_ok("conversations", {})
    query = "?include[]=message.input_image.image_url&include=reasoning.encrypted_content"
    added = await server.post_ok(f"conversations/{conversation['id']}/items{query}", {"items": [HELLO]})
    assert await list_items(server, conversation["id"], query) == added
    item = added["data"][0]
    assert (await server.get(f"conversations/{conversation['id']}/items/{item['id']}{query}")).json() == item


@pytest.mark.shows("B.25")
async def test_unknown_fields_are_listed_in_a_header(server: ApiServer) -> None:
    answer = await server.post("conversations", {"title": "x"})
    assert {*answer.json()} == {"id", "object", "created_at", "metadata"}
    assert answer.header(b"x-antiphon-ignored") == b"title"
    path = f"conversations/{answer.json()['id']}/items?colour=red"
    assert (await server.get(path)).header(b"x-antiphon-ignored") == b"colour"
    assert (await server.post(path, {"items": [], "y": 1})).header(b"x-antiphon-ignored") == b"colour, y"


@pytest.mark.shows("B.22", "B.26")
async def test_parallel_responses_neither_lose_nor_interleave_their_turns(server: ApiServer) -> None:
    conversation = (await server.post_ok("conversations", {}))["id"]
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for number in range(50):
            group.create_task(server.create(input=str(number), conversation=conversation, stream=False))
    seen: list[str] = []
    query, more = "?limit=100&order=asc", True
    while more:
        page = await list_items(server, conversation, query)
        seen += [read_text(item) for item in page["data"]]
        query, more = f"?limit=100&order=asc&after={page['last_id']}", page["has_more"]
    inputs, replies = seen[::2], seen[1::2]
    assert sorted(inputs, key=int) == [str(number) for number in range(50)]
    assert replies == [f"You said: {one}" for one in inputs]


@pytest.mark.shows("B1.5")
async def test_without_a_store_the_error_names_the_flag() -> None:
    async with run_api(disable_store=True) as server:
        answers = [await server.post("conversations", {}), await server.get("conversations/" + new_id("conv"))]
        for answer in answers:
            assert answer.status == 404
            assert "--disable-store" in answer.error["message"]
