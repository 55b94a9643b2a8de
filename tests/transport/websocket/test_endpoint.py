"""WebSocket handshakes: routes, keys, origins and connection limits. Rejected ones get a plain HTTP response."""

import logging
from typing import Any

import pytest

from antiphon.transport.middleware.app import App
from tests.api.app import run_api
from tests.support.asgi_client import HOST, JSON, Header, call
from tests.transport.websocket.ws_client import WebSocketClient, fetch_rejection, open_websocket, socket_scope

pytestmark = pytest.mark.anyio

KEY = "sk-right"
KEY_HEADER: Header = (b"authorization", b"Bearer sk-right")
PUBLIC_HOST: Header = (b"host", b"api.example:8000")
ALL_INTERFACES: dict[str, Any] = {"host": "0.0.0.0", "api_key": (KEY, "sk-other")}
LOOPBACK: dict[str, Any] = {"api_key": (KEY,)}


def make_origin_header(value: bytes) -> Header:
    return (b"origin", value)


async def count_connections(app: App, *headers: Header) -> int:
    """Return the number of open connections in the metrics."""
    metrics = (await call(app, "GET", "/metrics", *headers)).body.decode()
    [line] = [line for line in metrics.split("\n") if line.startswith("antiphon_websocket_connections ")]
    return int(float(line.split()[1]))


@pytest.mark.parametrize("path", ["/v1/responses", "/responses", "/v3/responses"])
@pytest.mark.shows("F.1")
async def test_the_endpoint_is_served_under_every_prefix(path: str) -> None:
    async with run_api() as server, open_websocket(server.app, path=path) as client:
        assert (await client.create())["status"] == "completed"


@pytest.mark.parametrize(("path", "status"), [("/v1/nowhere", 404), ("/v1/responses/resp_1", 426), ("/v1/models", 426)])
async def test_other_paths_accept_no_websocket(path: str, status: int) -> None:
    async with run_api() as server:
        answer = await fetch_rejection(server.app, HOST, (b"upgrade", b"websocket"), path=path)
    assert answer.status == status
    assert answer.error["message"]


@pytest.mark.shows("F.9")
async def test_a_server_without_websockets_replies_426_and_serves_http() -> None:
    upgrade: list[Header] = [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
    async with run_api(websocket="off") as server:
        answer = await call(server.app, "GET", "/v1/responses", *upgrade)
        assert (answer.status, answer.error["type"]) == (426, "invalid_request_error")
        assert (await fetch_rejection(server.app, HOST, *upgrade)).status == 426
        assert (await server.create())["status"] == "completed"


async def test_a_plain_get_lists_responses_and_other_methods_get_405() -> None:
    async with run_api() as server:
        assert (await call(server.app, "GET", "/v1/responses")).json()["object"] == "list"
        answer = await call(server.app, "PUT", "/v1/responses")
        assert (answer.status, answer.header(b"allow")) == (405, b"GET, HEAD, POST")
        assert (await server.create())["status"] == "completed"


@pytest.mark.shows("F.8", "H1.7")
async def test_a_full_server_rejects_handshakes_until_a_connection_is_closed() -> None:
    async with run_api(max_websocket_connections=2) as server:
        async with open_websocket(server.app):
            async with open_websocket(server.app):
                answer = await fetch_rejection(server.app, HOST)
                assert (answer.status, answer.error["type"]) == (503, "service_unavailable")
                assert int(answer.header(b"retry-after") or 0) >= 1
                assert await count_connections(server.app) == 2
            async with open_websocket(server.app) as client:
                assert (await client.create())["status"] == "completed"
        assert await count_connections(server.app) == 0


@pytest.mark.shows("F.8")
async def test_each_key_has_its_own_connection_limit() -> None:
    other: Header = (b"authorization", b"Bearer sk-other")
    async with (
        run_api(**ALL_INTERFACES, max_websocket_connections_per_key=1) as server,
        open_websocket(server.app, KEY_HEADER),
    ):
        for same in (KEY_HEADER, (b"x-api-key", KEY.encode())):
            answer = await fetch_rejection(server.app, HOST, same)
            assert (answer.status, answer.header(b"retry-after")) == (503, b"5")
        async with open_websocket(server.app, other) as client:
            assert (await client.create())["status"] == "completed"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"Bearer wrong")],
        [(b"authorization", b"Basic sk-right")],
        [KEY_HEADER, KEY_HEADER],
        [(b"cookie", b"api_key=sk-right; authorization=Bearer sk-right")],
        [(b"sec-websocket-protocol", b"openai-insecure-api-key.wrong")],
    ],
    ids=["none", "wrong", "another scheme", "doubled", "cookie", "subprotocol"],
)
@pytest.mark.parametrize("settings", [LOOPBACK, ALL_INTERFACES], ids=["loopback", "all interfaces"])
async def test_a_handshake_without_a_valid_key_is_rejected(headers: list[Header], settings: dict[str, Any]) -> None:
    async with run_api(**settings) as server:
        answer = await fetch_rejection(server.app, HOST, *headers)
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
        assert await count_connections(server.app, KEY_HEADER) == 0


async def test_a_key_in_the_query_is_rejected_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with run_api(**LOOPBACK) as server:
            answer = await fetch_rejection(server.app, HOST, query=b"api_key=sk-right&key=sk-right")
    assert answer.status == 401
    assert KEY not in caplog.text
    assert KEY not in answer.body.decode()


@pytest.mark.parametrize("key", [KEY_HEADER, (b"x-api-key", KEY.encode())])
async def test_a_handshake_with_a_valid_key_is_accepted(key: Header) -> None:
    async with run_api(**ALL_INTERFACES) as server, open_websocket(server.app, key) as client:
        assert (await client.create())["status"] == "completed"


FOREIGN_ORIGINS = [
    b"http://evil.example", b"https://evil.example", b"null", b"", b"file://", b"http://localhost.evil.example",
    b"http://localhost@evil.example", b"http://api.example.evil.example", b"chrome-extension://api.example",
    b"http://api.example/x",
]  # fmt: skip


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (b"responses, openai-insecure-api-key.sk-right", "responses"),
        (b"openai-insecure-api-key.sk-right,realtime", "realtime"),
        (b"openai-insecure-api-key.sk-right", None),
    ],
)
@pytest.mark.shows("F.13")
async def test_browsers_offer_the_key_as_a_subprotocol(offered: bytes, chosen: str | None) -> None:
    headers = (PUBLIC_HOST, (b"sec-websocket-protocol", offered))
    async with run_api(**ALL_INTERFACES) as server:
        client = WebSocketClient(server.app, socket_scope("/v1/responses", headers))
        accepted = await client.receive_message()
        assert (accepted["type"], accepted["subprotocol"]) == ("websocket.accept", chosen)
        assert (await client.create())["status"] == "completed"
        client.disconnect()
        await client.wait_closed()


@pytest.mark.parametrize("offered", [b"responses", b"openai-insecure-api-key.sk-wrong", b"openai-insecure-api-key."])
@pytest.mark.shows("F.13")
async def test_subprotocols_without_a_valid_key_are_rejected(offered: bytes) -> None:
    async with run_api(**ALL_INTERFACES) as server:
        answer = await fetch_rejection(server.app, PUBLIC_HOST, (b"sec-websocket-protocol", offered))
        assert answer.status == 401
        over_http = (b"sec-websocket-protocol", b"openai-insecure-api-key.sk-right")
        assert (await call(server.app, "GET", "/v1/models", over_http)).status == 401


@pytest.mark.parametrize("page", FOREIGN_ORIGINS, ids=repr)
@pytest.mark.parametrize("loopback", [True, False], ids=["loopback", "all interfaces"])
async def test_a_foreign_origin_is_rejected_even_with_a_valid_key(page: bytes, loopback: bool) -> None:
    settings, host = ({}, HOST) if loopback else (ALL_INTERFACES, PUBLIC_HOST)
    async with run_api(**settings) as server:
        answer = await fetch_rejection(server.app, host, KEY_HEADER, make_origin_header(page))
        assert (answer.status, answer.error["type"]) == (403, "permission_error")
        assert await count_connections(server.app, KEY_HEADER) == 0


async def test_two_origins_are_rejected() -> None:
    own, evil = make_origin_header(b"https://api.example"), make_origin_header(b"http://evil.example")
    async with run_api(**ALL_INTERFACES) as server:
        for origins in ([own, evil], [evil, own]):
            assert (await fetch_rejection(server.app, PUBLIC_HOST, KEY_HEADER, *origins)).status == 403


@pytest.mark.parametrize(
    ("settings", "host", "page"),
    [
        ({}, HOST, b"http://localhost:3000"),
        ({}, HOST, b"http://127.0.0.1:8000"),
        (ALL_INTERFACES, PUBLIC_HOST, b"https://api.example"),
        (ALL_INTERFACES, PUBLIC_HOST, b"https://API.example:8000"),
        ({**ALL_INTERFACES, "allow_origin": ("https://app.example",)}, PUBLIC_HOST, b"https://app.example"),
        ({"allow_origin": ("https://app.example/",)}, HOST, b"https://App.example"),
    ],
)
async def test_own_and_allowed_origins_are_accepted(settings: dict[str, Any], host: Header, page: bytes) -> None:
    async with (
        run_api(**settings) as server,
        open_websocket(server.app, KEY_HEADER, make_origin_header(page), host=host) as client,
    ):
        assert (await client.create())["status"] == "completed"


@pytest.mark.shows("H.13")
async def test_on_loopback_a_foreign_host_is_rejected() -> None:
    async with run_api() as server:
        assert (await fetch_rejection(server.app, (b"host", b"evil.example"))).status == 403


async def test_http_requests_are_served_beside_a_websocket() -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        client.send_create()
        posted = await call(server.app, "POST", "/v1/responses", JSON, body=[b'{"model":"fake","input":"hi"}'])
        assert posted.status == 200
        event = await client.receive_end()
        got = await server.get(f"responses/{event['response']['id']}")
        assert got.json() == event["response"]
