"""Whatever is sent to what the server keeps, the answer is a 2xx, or a 4xx in the one shape; never a 5xx."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.ids import new_id
from tests.api.app import Api, api
from tests.support.asgi_client import JSON, Answer, call

pytestmark = pytest.mark.anyio

WORDS = st.text(max_size=20)
NAMES = st.sampled_from(["items", "metadata", "type", "role", "content", "id", "text", "output", "call_id", "status"])
VALUES = st.sampled_from(["message", "user", "item_reference", "function_call_output", "input_text", "conv_", None])
BODIES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS | VALUES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | WORDS, inner, max_size=4),
    max_leaves=12,
)
IDS = WORDS | st.sampled_from(["resp_" + "0" * 32, "conv_" + "0" * 32, "msg_" + "0" * 37, "..", "%00", "%ff", "conv_x"])
QUERIES = st.lists(
    st.tuples(
        st.sampled_from(["limit", "order", "after", "include[]", "include", "stream", "starting_after", "x"]), WORDS
    ),
    max_size=4,
)
PLACES = [
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


async def send(server: Api, method: str, path: str, body: Any) -> Answer:
    content = json.dumps(body).encode()
    length = (b"content-length", b"%d" % len(content))
    raw = path.encode("utf-8", "surrogatepass").replace(b" ", b"%20").replace(b"\n", b"%0a")
    return await call(server.app, method, b"/v1/" + raw, JSON, length, body=[content])


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(place=st.sampled_from(PLACES), ids=st.tuples(IDS, IDS), query=QUERIES, body=BODIES)
async def test_anything_at_all_is_answered_in_shape(
    place: tuple[str, str], ids: tuple[str, str], query: list[tuple[str, str]], body: Any
) -> None:
    method, path = place
    asked = "&".join(f"{name}={value}" for name, value in query)
    async with api() as server:
        known = (await server.made("conversations", {"items": [{"role": "user", "content": "a"}]}))["id"]
        for name in (ids[0], known):
            answer = await send(server, method, f"{path.format(name, ids[1])}?{asked}", body)
            assert answer.status < 500, answer.body
            if answer.status >= 400:
                assert answer.error["message"]


LONE = b'"\\ud800"'
BODY_FAULTS: dict[str, bytes] = {
    "a lone surrogate as metadata": b'{"metadata":{"k":%b}}' % LONE,
    "a lone surrogate as text": b'{"items":[{"role":"user","content":%b}]}' % LONE,
    "deep": b'{"items":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "no object": b"[]",
    "no JSON": b"{",
    "bytes": b"\xff\xfe",
    "an id without end": b'{"items":[{"type":"item_reference","id":"%b"}]}' % (b"x" * 100_000),
    "too many keys": json.dumps({"metadata": {str(number): "" for number in range(50_000)}}).encode(),
    "a huge number": b'{"metadata":{"k":1e400}}',
}


@pytest.mark.parametrize("name", BODY_FAULTS)
async def test_a_bad_body_is_a_400_that_says_so(name: str) -> None:
    async with api() as server:
        made = (await server.made("conversations", {}))["id"]
        for path in ("conversations", f"conversations/{made}", f"conversations/{made}/items"):
            answer = await server.post(path, BODY_FAULTS[name])
            assert answer.status == 400, (path, answer.body)
            assert answer.error["type"] == "invalid_request_error"
            assert len(answer.body) < 2000


async def test_items_of_a_tenth_of_the_largest_body_are_kept_and_come_back() -> None:
    async with api() as server:
        large = "x" * 2_000_000
        made = (await server.made("conversations", {"items": [{"role": "user", "content": large}]}))["id"]
        (item,) = (await server.get(f"conversations/{made}/items")).json()["data"]
        assert item["content"][0]["text"] == large


@pytest.mark.parametrize("what", ["", "/input_items", "?stream=true"])
async def test_an_id_that_never_was_answers_like_one_that_is_gone(what: str) -> None:
    async with api() as server:
        reply = await server.create()
        await server.delete(f"responses/{reply['id']}")
        gone = await server.get(f"responses/{reply['id']}{what}")
        never_id = new_id("resp")
        never = await server.get(f"responses/{never_id}{what}")
        assert gone.body.replace(reply["id"].encode(), b"") == never.body.replace(never_id.encode(), b"")
