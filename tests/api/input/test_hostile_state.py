"""Hostile requests to stored responses and conversations: each gets a 2xx or a well-formed 4xx, never a 5xx."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.ids import new_id
from tests.api.app import ApiServer, run_api
from tests.support.asgi_client import JSON, AsgiResponse, call

pytestmark = pytest.mark.anyio

TEXTS = st.text(max_size=20)
NAMES = st.sampled_from(["items", "metadata", "type", "role", "content", "id", "text", "output", "call_id", "status"])
VALUES = st.sampled_from(["message", "user", "item_reference", "function_call_output", "input_text", "conv_", None])
BODIES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS | VALUES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | TEXTS, inner, max_size=4),
    max_leaves=12,
)
IDS = TEXTS | st.sampled_from(["resp_" + "0" * 32, "conv_" + "0" * 32, "msg_" + "0" * 37, "..", "%00", "%ff", "conv_x"])
QUERIES = st.lists(
    st.tuples(
        st.sampled_from(["limit", "order", "after", "include[]", "include", "stream", "starting_after", "x"]), TEXTS
    ),
    max_size=4,
)
ROUTES = [
    ("GET", "responses/{}"),
    ("DELETE", "responses/{}"),
    ("POST", "responses/{}/cancel"),
    ("POST", "responses/{}/tool_outputs"),
    ("GET", "responses/{}/input_items"),
    ("POST", "conversations"),
    ("GET", "conversations/{}"),
    ("POST", "conversations/{}"),
    ("DELETE", "conversations/{}"),
    ("GET", "conversations/{}/items"),
    ("POST", "conversations/{}/items"),
    ("GET", "conversations/{}/items/{}"),
    ("DELETE", "conversations/{}/items/{}"),
]


async def send(server: ApiServer, method: str, path: str, body: Any) -> AsgiResponse:
    content = json.dumps(body).encode()
    length = (b"content-length", b"%d" % len(content))
    raw = path.encode("utf-8", "surrogatepass").replace(b" ", b"%20").replace(b"\n", b"%0a")
    return await call(server.app, method, b"/v1/" + raw, JSON, length, body=[content])


@given(route=st.sampled_from(ROUTES), ids=st.tuples(IDS, IDS), query=QUERIES, body=BODIES)
async def test_any_request_gets_a_2xx_or_a_well_formed_4xx(
    route: tuple[str, str], ids: tuple[str, str], query: list[tuple[str, str]], body: Any
) -> None:
    method, path = route
    query_string = "&".join(f"{name}={value}" for name, value in query)
    async with run_api() as server:
        existing_id = (await server.post_ok("conversations", {"items": [{"role": "user", "content": "a"}]}))["id"]
        for name in (ids[0], existing_id):
            answer = await send(server, method, f"{path.format(name, ids[1])}?{query_string}", body)
            assert answer.status < 500, answer.body
            if answer.status >= 400:
                assert answer.error["message"]


LONE_SURROGATE = b'"\\ud800"'
BODY_FAULTS: dict[str, bytes] = {
    "a lone surrogate as metadata": b'{"metadata":{"k":%b}}' % LONE_SURROGATE,
    "a lone surrogate as text": b'{"items":[{"role":"user","content":%b}]}' % LONE_SURROGATE,
    "deep": b'{"items":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "not an object": b"[]",
    "not JSON": b"{",
    "not UTF-8": b"\xff\xfe",
    "a very long id": b'{"items":[{"type":"item_reference","id":"%b"}]}' % (b"x" * 100_000),
    "too many keys": json.dumps({"metadata": {str(number): "" for number in range(50_000)}}).encode(),
    "a huge number": b'{"metadata":{"k":1e400}}',
}


@pytest.mark.parametrize("name", BODY_FAULTS)
async def test_an_invalid_body_is_a_400(name: str) -> None:
    async with run_api() as server:
        conversation_id = (await server.post_ok("conversations", {}))["id"]
        for path in ("conversations", f"conversations/{conversation_id}", f"conversations/{conversation_id}/items"):
            answer = await server.post(path, BODY_FAULTS[name])
            assert answer.status == 400, (path, answer.body)
            assert answer.error["type"] == "invalid_request_error"
            assert len(answer.body) < 2000


async def test_an_item_of_a_tenth_of_the_body_limit_is_stored_and_returned() -> None:
    async with run_api() as server:
        large = "x" * 2_000_000
        conversation_id = (await server.post_ok("conversations", {"items": [{"role": "user", "content": large}]}))["id"]
        (item,) = (await server.get(f"conversations/{conversation_id}/items")).json()["data"]
        assert item["content"][0]["text"] == large


@pytest.mark.parametrize("suffix", ["", "/input_items", "?stream=true"])
async def test_an_unknown_id_gets_the_same_answer_as_a_deleted_one(suffix: str) -> None:
    async with run_api() as server:
        reply = await server.create()
        await server.delete(f"responses/{reply['id']}")
        deleted = await server.get(f"responses/{reply['id']}{suffix}")
        unknown_id = new_id("resp")
        unknown = await server.get(f"responses/{unknown_id}{suffix}")
        assert deleted.body.replace(reply["id"].encode(), b"") == unknown.body.replace(unknown_id.encode(), b"")
