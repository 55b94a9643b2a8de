"""/v1/conversations, judged by the openai package's types."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from antiphon.ids import new_id
from tests.api.app import Api, api
from tests.oracles.responses import check_conversation, check_conversation_item, check_conversation_items
from tests.support.asgi_client import Answer

pytestmark = pytest.mark.anyio
HELLO = {"role": "user", "content": "hello"}


@pytest.fixture
async def server() -> AsyncIterator[Api]:
    async with api() as server:
        yield server


def text(item: dict[str, Any]) -> str:
    return str(item["content"][0]["text"])


def say(*texts: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": one} for one in texts]


async def listed(server: Api, conversation: str, query: str = "") -> Any:
    answer = await server.get(f"conversations/{conversation}/items{query}")
    assert answer.status == 200, answer.body
    page = answer.json()
    check_conversation_items(page)
    return page


@pytest.mark.shows("B.14", "B.15")
async def test_a_conversation_is_made_and_found_again(server: Api) -> None:
    made = await server.made("conversations", {"items": [HELLO], "metadata": {"topic": "demo"}})
    check_conversation(made)
    assert made["id"].startswith("conv_")
    assert made["metadata"] == {"topic": "demo"}
    assert (await server.get(f"conversations/{made['id']}")).json() == made
    assert [text(item) for item in (await listed(server, made["id"]))["data"]] == ["hello"]


@pytest.mark.parametrize("body", [None, b"{}", b'{"items": null, "metadata": null}'])
async def test_nothing_needs_to_be_said_to_make_one(server: Api, body: bytes | None) -> None:
    answer = await server.post("conversations", body)
    assert answer.status == 200
    check_conversation(answer.json())
    assert answer.json()["metadata"] == {}


@pytest.mark.shows("B.16")
async def test_metadata_is_merged_and_null_deletes_a_key(server: Api) -> None:
    made = await server.made("conversations", {"metadata": {"project": "p", "user": "u"}})
    path = f"conversations/{made['id']}"
    changed = await server.made(path, {"metadata": {"status": "resolved", "project": None, "absent": None}})
    check_conversation(changed)
    assert changed == {**made, "metadata": {"user": "u", "status": "resolved"}}
    assert (await server.get(path)).json() == changed
    assert await server.made(path, {"metadata": None}) == changed


async def test_metadata_stays_within_its_bounds_when_merged(server: Api) -> None:
    made = await server.made("conversations", {"metadata": {f"k{number}": "v" for number in range(10)}})
    path = f"conversations/{made['id']}"
    answer = await server.post(path, {"metadata": {f"l{number}": "v" for number in range(7)}})
    assert (answer.status, answer.error["param"]) == (400, "metadata")
    assert (await server.get(path)).json() == made
    swapped = {"k0": None, **{f"l{number}": "v" for number in range(7)}}
    assert len((await server.made(path, {"metadata": swapped}))["metadata"]) == 16


@pytest.mark.shows("B.17")
async def test_a_deleted_conversation_is_gone_and_its_items_can_still_be_referred_to(server: Api) -> None:
    made = await server.made("conversations", {"items": [HELLO]})
    (item,) = (await listed(server, made["id"]))["data"]
    deleted = await server.delete(f"conversations/{made['id']}")
    assert deleted.json() == {"id": made["id"], "object": "conversation.deleted", "deleted": True}
    check_conversation(deleted.json())
    for path in ("", "/items", f"/items/{item['id']}"):
        answer = await server.get(f"conversations/{made['id']}{path}")
        assert (answer.status, answer.error["type"]) == (404, "not_found_error")
    assert (await server.delete(f"conversations/{made['id']}")).status == 404
    other = await server.made("conversations", {"items": [{"type": "item_reference", "id": item["id"]}]})
    assert (await listed(server, other["id"]))["data"] == [item]


@pytest.mark.shows("B.18", "B.20")
async def test_items_are_added_and_each_can_be_fetched(server: Api) -> None:
    made = await server.made("conversations", {})
    path = f"conversations/{made['id']}/items"
    sent = [HELLO, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "mine"}]
    added = await server.made(path, {"items": sent})
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
async def test_twenty_items_are_taken_and_one_more_is_not(server: Api) -> None:
    made = await server.made("conversations", {})
    path = f"conversations/{made['id']}/items"
    assert len((await server.made(path, {"items": [HELLO] * 20}))["data"]) == 20
    for sent in ("conversations", path):
        answer = await server.post(sent, {"items": [HELLO] * 21})
        assert (answer.status, answer.error["param"]) == (400, "items")
    assert len((await listed(server, made["id"], "?limit=100"))["data"]) == 20


async def test_no_items_at_all_are_a_list_of_none(server: Api) -> None:
    made = await server.made("conversations", {})
    empty = {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}
    assert await server.made(f"conversations/{made['id']}/items", {"items": []}) == empty
    assert await listed(server, made["id"]) == empty


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
@pytest.mark.shows("B.19")
async def test_pages_neither_skip_nor_repeat(server: Api, order: str, limit: int) -> None:
    texts = [str(number) for number in range(7)]
    made = await server.made("conversations", {"items": say(*texts)})
    seen: list[str] = []
    query, more = f"?limit={limit}&order={order}", True
    while more:
        page = await listed(server, made["id"], query)
        assert len(page["data"]) <= limit
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
        seen += [text(item) for item in page["data"]]
        query, more = f"?limit={limit}&order={order}&after={page['last_id']}", page["has_more"]
    assert seen == (texts if order == "asc" else texts[::-1])


@pytest.mark.shows("B.19")
async def test_a_page_has_twenty_items_newest_first(server: Api) -> None:
    made = await server.made("conversations", {"items": say(*map(str, range(20)))})
    await server.made(f"conversations/{made['id']}/items", {"items": say("20", "21")})
    page = await listed(server, made["id"])
    assert [text(item) for item in page["data"]] == [str(number) for number in range(21, 1, -1)]
    assert page["has_more"] is True


async def test_a_page_goes_on_from_an_item_that_was_deleted_meanwhile(server: Api) -> None:
    made = await server.made("conversations", {"items": say("a", "b", "c")})
    page = await listed(server, made["id"], "?order=asc&limit=1")
    await server.delete(f"conversations/{made['id']}/items/{page['last_id']}")
    rest = await listed(server, made["id"], f"?order=asc&after={page['last_id']}")
    assert [text(item) for item in rest["data"]] == ["b", "c"]


@pytest.mark.shows("B.21", "B2.4")
async def test_an_item_is_deleted_from_one_conversation_alone(server: Api) -> None:
    one = await server.made("conversations", {"items": say("a", "b")})
    first = (await listed(server, one["id"], "?order=asc"))["data"][0]
    other = await server.made("conversations", {"items": [{"type": "item_reference", "id": first["id"]}]})
    answer = await server.delete(f"conversations/{one['id']}/items/{first['id']}")
    assert answer.json() == one
    assert [text(item) for item in (await listed(server, one["id"]))["data"]] == ["b"]
    assert (await server.get(f"conversations/{one['id']}/items/{first['id']}")).status == 404
    assert (await server.delete(f"conversations/{one['id']}/items/{first['id']}")).status == 404
    assert (await listed(server, other["id"]))["data"] == [first]


@pytest.mark.shows("B2.3", "B.11")
async def test_a_reference_shares_an_item_of_a_response(server: Api) -> None:
    reply = await server.create()
    (message,) = reply["output"]
    (given,) = (await server.get(f"responses/{reply['id']}/input_items")).json()["data"]
    made = await server.made("conversations", {})
    references = [{"type": "item_reference", "id": given["id"]}, {"id": message["id"]}, HELLO]
    added = await server.made(f"conversations/{made['id']}/items", {"items": references})
    check_conversation_items(added)
    assert [item["id"] for item in added["data"]][:2] == [given["id"], message["id"]]
    assert added["data"][1] == message
    assert (await server.get(f"conversations/{made['id']}/items/{message['id']}")).json() == message


@pytest.mark.parametrize("name", ["nothing", "msg_" + "0" * 32, "msg_" + "0" * 37, "msg_%00", "x" * 500])
@pytest.mark.shows("B2.3")
async def test_a_reference_to_nothing_is_named(server: Api, name: str) -> None:
    made = await server.made("conversations", {})
    body = {"items": [HELLO, {"type": "item_reference", "id": name}]}
    for path in ("conversations", f"conversations/{made['id']}/items"):
        answer = await server.post(path, body)
        assert (answer.status, answer.error["param"]) == (400, "items[1].id")
    assert (await listed(server, made["id"]))["data"] == []


PATHS = ("", "/items", "/items/msg_1")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.shows("B.24")
async def test_an_id_of_another_kind_is_a_400_that_says_so(server: Api, path: str) -> None:
    answer = await server.get(f"conversations/invalid-id{path}")
    assert answer.status == 400
    assert answer.error == {
        "message": "Invalid 'conversation_id': 'invalid-id'. Expected an ID that begins with 'conv_'.",
        "type": "invalid_request_error",
        "param": "conversation_id",
        "code": "invalid_conversation_id",
    }


@pytest.mark.parametrize("name", ["conv_", "conv_123", "conv_%2e%2e", "conv_" + "f" * 32, "conv_" + "0" * 4000])
async def test_an_unknown_conversation_is_not_found_whatever_is_done_to_it(server: Api, name: str) -> None:
    path = f"conversations/{name}"
    answers: list[Answer] = [await server.get(f"{path}{rest}") for rest in PATHS]
    answers += [await server.delete(path), await server.delete(f"{path}/items/msg_1")]
    answers += [await server.post(path, {"metadata": {}}), await server.post(f"{path}/items", {"items": [HELLO]})]
    for answer in answers:
        assert (answer.status, answer.error["type"]) == (404, "not_found_error")
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
async def test_a_page_that_cannot_be_is_a_400(server: Api, query: str, param: str) -> None:
    made = await server.made("conversations", {"items": [HELLO]})
    answer = await server.get(f"conversations/{made['id']}/items?{query}")
    assert (answer.status, answer.error["param"]) == (400, param)


async def test_a_cursor_of_another_conversation_is_none_here(server: Api) -> None:
    one = await server.made("conversations", {"items": [HELLO]})
    other = await server.made("conversations", {"items": [HELLO]})
    cursor = (await listed(server, other["id"]))["last_id"]
    answer = await server.get(f"conversations/{one['id']}/items?after={cursor}")
    assert (answer.status, answer.error["param"]) == (400, "after")


async def test_every_include_is_taken(server: Api) -> None:
    made = await server.made("conversations", {})
    query = "?include[]=message.input_image.image_url&include=reasoning.encrypted_content"
    added = await server.made(f"conversations/{made['id']}/items{query}", {"items": [HELLO]})
    assert await listed(server, made["id"], query) == added
    item = added["data"][0]
    assert (await server.get(f"conversations/{made['id']}/items/{item['id']}{query}")).json() == item


@pytest.mark.shows("B.25")
async def test_what_means_nothing_is_named_in_a_header(server: Api) -> None:
    answer = await server.post("conversations", {"title": "x"})
    assert {*answer.json()} == {"id", "object", "created_at", "metadata"}
    assert answer.header(b"x-antiphon-ignored") == b"title"
    path = f"conversations/{answer.json()['id']}/items?colour=red"
    assert (await server.get(path)).header(b"x-antiphon-ignored") == b"colour"
    assert (await server.post(path, {"items": [], "y": 1})).header(b"x-antiphon-ignored") == b"colour, y"


@pytest.mark.shows("B.22", "B.26")
async def test_parallel_responses_neither_lose_nor_interleave_their_turns(server: Api) -> None:
    made = (await server.made("conversations", {}))["id"]
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for number in range(50):
            group.create_task(server.create(input=str(number), conversation=made, stream=False))
    seen: list[str] = []
    query, more = "?limit=100&order=asc", True
    while more:
        page = await listed(server, made, query)
        seen += [text(item) for item in page["data"]]
        query, more = f"?limit=100&order=asc&after={page['last_id']}", page["has_more"]
    asked, answered = seen[::2], seen[1::2]
    assert sorted(asked, key=int) == [str(number) for number in range(50)]
    assert answered == [f"You said: {one}" for one in asked]


@pytest.mark.shows("B1.5")
async def test_a_server_that_keeps_nothing_says_so() -> None:
    async with api(disable_store=True) as server:
        answers = [await server.post("conversations", {}), await server.get("conversations/" + new_id("conv"))]
        for answer in answers:
            assert answer.status == 404
            assert "--disable-store" in answer.error["message"]
