"""Who is let in, and how many: everybody else gets a plain answer, before anything is a WebSocket."""

import logging
from typing import Any

import pytest

from antiphon.transport.middleware.app import App
from tests.api.app import api
from tests.support.asgi_client import HOST, JSON, Header, call
from tests.transport.websocket.ws_client import knock, talking

pytestmark = pytest.mark.anyio

KEY = "sk-right"
RIGHT: Header = (b"authorization", b"Bearer sk-right")
FAR: Header = (b"host", b"api.example:8000")
BEYOND: dict[str, Any] = {"host": "0.0.0.0", "api_key": (KEY, "sk-other")}
LOOPBACK: dict[str, Any] = {"api_key": (KEY,)}


def origin(value: bytes) -> Header:
    return (b"origin", value)


async def gauge(app: App, *headers: Header) -> int:
    """How many are open, as the server tells."""
    metrics = (await call(app, "GET", "/metrics", *headers)).body.decode()
    [line] = [line for line in metrics.split("\n") if line.startswith("antiphon_websocket_connections ")]
    return int(float(line.split()[1]))


@pytest.mark.parametrize("path", ["/v1/responses", "/responses", "/v3/responses"])
@pytest.mark.shows("F.1")
async def test_it_is_found_wherever_responses_are(path: str) -> None:
    async with api() as server, talking(server.app, path=path) as talk:
        assert (await talk.made())["status"] == "completed"


@pytest.mark.parametrize(("path", "status"), [("/v1/nowhere", 404), ("/v1/responses/resp_1", 426), ("/v1/models", 426)])
async def test_it_is_found_nowhere_else(path: str, status: int) -> None:
    async with api() as server:
        answer = await knock(server.app, HOST, (b"upgrade", b"websocket"), path=path)
    assert answer.status == status
    assert answer.error["message"]


@pytest.mark.shows("F.9")
async def test_a_server_without_it_says_426_and_goes_on_with_http() -> None:
    upgrade: list[Header] = [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
    async with api(websocket="off") as server:
        answer = await call(server.app, "GET", "/v1/responses", *upgrade)
        assert (answer.status, answer.error["type"]) == (426, "invalid_request_error")
        assert (await knock(server.app, HOST, *upgrade)).status == 426
        assert (await server.create())["status"] == "completed"


async def test_a_plain_get_is_a_list_and_what_is_not_allowed_there_is_told_so() -> None:
    async with api() as server:
        assert (await call(server.app, "GET", "/v1/responses")).json()["object"] == "list"
        answer = await call(server.app, "PUT", "/v1/responses")
        assert (answer.status, answer.header(b"allow")) == (405, b"GET, HEAD, POST")
        assert (await server.create())["status"] == "completed"


@pytest.mark.shows("F.8", "H1.7")
async def test_a_full_server_refuses_before_it_is_a_websocket_and_has_room_again_after_one_left() -> None:
    async with api(max_websocket_connections=2) as server:
        async with talking(server.app):
            async with talking(server.app):
                answer = await knock(server.app, HOST)
                assert (answer.status, answer.error["type"]) == (503, "service_unavailable")
                assert int(answer.header(b"retry-after") or 0) >= 1
                assert await gauge(server.app) == 2
            async with talking(server.app) as talk:
                assert (await talk.made())["status"] == "completed"
        assert await gauge(server.app) == 0


@pytest.mark.shows("F.8")
async def test_each_key_has_a_bound_of_its_own() -> None:
    other: Header = (b"authorization", b"Bearer sk-other")
    async with api(**BEYOND, max_websocket_connections_per_key=1) as server, talking(server.app, RIGHT):
        for same in (RIGHT, (b"x-api-key", KEY.encode())):
            answer = await knock(server.app, HOST, same)
            assert (answer.status, answer.header(b"retry-after")) == (503, b"5")
        async with talking(server.app, other) as talk:
            assert (await talk.made())["status"] == "completed"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"Bearer wrong")],
        [(b"authorization", b"Basic sk-right")],
        [RIGHT, RIGHT],
        [(b"cookie", b"api_key=sk-right; authorization=Bearer sk-right")],
        [(b"sec-websocket-protocol", b"openai-insecure-api-key.wrong")],
    ],
    ids=["none", "wrong", "another scheme", "doubled", "cookie", "subprotocol"],
)
@pytest.mark.parametrize("settings", [LOOPBACK, BEYOND], ids=["loopback", "beyond"])
async def test_without_its_key_nobody_comes_in(headers: list[Header], settings: dict[str, Any]) -> None:
    async with api(**settings) as server:
        answer = await knock(server.app, HOST, *headers)
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
        assert await gauge(server.app, RIGHT) == 0


async def test_a_key_in_the_query_opens_nothing_and_is_not_written_down(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with api(**LOOPBACK) as server:
            answer = await knock(server.app, HOST, query=b"api_key=sk-right&key=sk-right")
    assert answer.status == 401
    assert KEY not in caplog.text
    assert KEY not in answer.body.decode()


@pytest.mark.parametrize("key", [RIGHT, (b"x-api-key", KEY.encode())])
async def test_with_its_key_a_client_comes_in(key: Header) -> None:
    async with api(**BEYOND) as server, talking(server.app, key) as talk:
        assert (await talk.made())["status"] == "completed"


FOREIGN = [
    b"http://evil.example", b"https://evil.example", b"null", b"", b"file://", b"http://localhost.evil.example",
    b"http://localhost@evil.example", b"http://api.example.evil.example", b"chrome-extension://api.example",
    b"http://api.example/x",
]  # fmt: skip


@pytest.mark.parametrize("page", FOREIGN, ids=repr)
@pytest.mark.parametrize("near", [True, False], ids=["loopback", "beyond"])
async def test_a_foreign_page_is_kept_out_though_it_has_the_key(page: bytes, near: bool) -> None:
    settings, host = ({}, HOST) if near else (BEYOND, FAR)
    async with api(**settings) as server:
        answer = await knock(server.app, host, RIGHT, origin(page))
        assert (answer.status, answer.error["type"]) == (403, "permission_error")
        assert await gauge(server.app, RIGHT) == 0


async def test_two_origins_are_one_too_many() -> None:
    own, evil = origin(b"https://api.example"), origin(b"http://evil.example")
    async with api(**BEYOND) as server:
        for given in ([own, evil], [evil, own]):
            assert (await knock(server.app, FAR, RIGHT, *given)).status == 403


@pytest.mark.parametrize(
    ("settings", "host", "page"),
    [
        ({}, HOST, b"http://localhost:3000"),
        ({}, HOST, b"http://127.0.0.1:8000"),
        (BEYOND, FAR, b"https://api.example"),
        (BEYOND, FAR, b"https://API.example:8000"),
        ({**BEYOND, "allow_origin": ("https://app.example",)}, FAR, b"https://app.example"),
        ({"allow_origin": ("https://app.example/",)}, HOST, b"https://App.example"),
    ],
)
async def test_our_own_pages_and_those_that_are_allowed_come_in(
    settings: dict[str, Any], host: Header, page: bytes
) -> None:
    async with api(**settings) as server, talking(server.app, RIGHT, origin(page), host=host) as talk:
        assert (await talk.made())["status"] == "completed"


@pytest.mark.shows("H.13")
async def test_on_loopback_a_foreign_name_of_the_server_is_refused() -> None:
    async with api() as server:
        assert (await knock(server.app, (b"host", b"evil.example"))).status == 403


async def test_beside_it_http_goes_its_way() -> None:
    async with api() as server, talking(server.app) as talk:
        talk.asks()
        posted = await call(server.app, "POST", "/v1/responses", JSON, body=[b'{"model":"fake","input":"hi"}'])
        assert posted.status == 200
        told = await talk.end()
        got = await server.get(f"responses/{told['response']['id']}")
        assert got.json() == told["response"]
