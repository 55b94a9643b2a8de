"""Headers that every reply has, whatever its content and its route, and the user identifiers in the log."""

import json
import logging
from typing import Any

import pytest

from tests.api.app import ApiServer, run_api
from tests.support.asgi_client import HOST, AsgiResponse, Header, call
from tests.transport.websocket.ws_client import WebSocketClient, open_websocket, socket_scope

pytestmark = pytest.mark.anyio

ORGANIZATION, VERSION = b"openai-organization", b"openai-version"
FORMAT, LOAD = b"endpoint-load-metrics-format", b"endpoint-load-metrics"
RESPONSE_BODY = {"model": "fake", "input": "hi"}
CHAT_BODY = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


async def collect_replies(server: ApiServer, *headers: Header) -> list[AsgiResponse]:
    """Request replies of all kinds: JSON, streams, errors and public routes."""
    made = await server.create()
    return [
        await server.post("responses", RESPONSE_BODY, *headers),
        await server.post("responses", {**RESPONSE_BODY, "stream": True}, *headers),
        await server.post("responses", {"model": "fake"}, *headers),
        await server.post("responses", b"{", *headers),
        await server.post("chat/completions", {**CHAT_BODY, "stream": True}, *headers),
        await server.post(f"responses/{made['id']}/cancel", {}, *headers),
        await call(server.app, "GET", f"/v1/responses/{made['id']}?stream=true", *headers),
        await call(server.app, "DELETE", f"/v1/responses/{made['id']}", *headers),
        await call(server.app, "GET", "/health", *headers),
        await call(server.app, "GET", "/nowhere", *headers),
        await call(server.app, "PATCH", "/v1/models", *headers),
    ]


@pytest.mark.shows("H2.2", "H1.5")
async def test_organization_and_version_are_echoed_or_have_configured_defaults() -> None:
    async with run_api() as server:
        for answer in await collect_replies(server):
            assert answer.header(ORGANIZATION) is answer.header(VERSION) is None
        for answer in await collect_replies(server, (ORGANIZATION, b"org-1"), (VERSION, b"2020-10-01")):
            assert (answer.header(ORGANIZATION), answer.header(VERSION)) == (b"org-1", b"2020-10-01")
    async with run_api(default_openai_organization="ours", default_openai_version="2024-01-01") as server:
        for answer in await collect_replies(server):
            assert (answer.header(ORGANIZATION), answer.header(VERSION)) == (b"ours", b"2024-01-01")
        for answer in await collect_replies(server, (ORGANIZATION, b"org-1")):
            assert (answer.header(ORGANIZATION), answer.header(VERSION)) == (b"org-1", b"2024-01-01")


@pytest.mark.shows("H2.2")
@pytest.mark.parametrize("value", [b"", b"a b", b"a\r\nx: y", b"\xff", b"x" * 129])
async def test_a_malformed_organization_is_not_echoed(value: bytes) -> None:
    async with run_api() as server:
        assert (await server.post("responses", RESPONSE_BODY, (ORGANIZATION, value))).header(ORGANIZATION) is None
    async with run_api(default_openai_organization="ours") as server:
        assert (await server.post("responses", RESPONSE_BODY, (ORGANIZATION, value))).header(ORGANIZATION) == b"ours"


@pytest.mark.shows("H2.5")
async def test_azure_headers_are_sent_if_enabled() -> None:
    async with run_api() as server:
        for answer in await collect_replies(server):
            assert answer.header(b"x-ms-region") is answer.header(b"api-supported-versions") is None
    async with run_api(azure_headers=True, azure_region="westeurope") as server:
        for answer in await collect_replies(server):
            assert answer.header(b"x-ms-region") == b"westeurope"
            assert answer.header(b"x-ms-request-id") == answer.header(b"x-request-id")
            assert answer.header(b"api-supported-versions") == b"v1"


@pytest.mark.shows("H4.1")
async def test_the_load_is_reported_on_request() -> None:
    async with run_api() as server:
        for answer in await collect_replies(server):
            assert answer.header(LOAD) is None
        for answer in await collect_replies(server, (FORMAT, b"JSON")):
            kind, _, metrics = (answer.header(LOAD) or b"").partition(b" ")
            named: dict[str, float] = json.loads(metrics)["named_metrics"]
            assert (kind, named) == (b"JSON", {"num_requests_running": 0.0, "num_requests_waiting": 0.0})
        answer = await server.post("responses", RESPONSE_BODY, (FORMAT, b"text"))
        expected = b"TEXT named_metrics.num_requests_running=0, named_metrics.num_requests_waiting=0"
        assert answer.header(LOAD) == expected
        assert (await server.post("responses", RESPONSE_BODY, (FORMAT, b"xml"))).header(LOAD) is None


async def test_a_websocket_handshake_has_the_standard_headers() -> None:
    async with run_api(azure_headers=True) as server:
        client = WebSocketClient(server.app, socket_scope("/v1/responses", (HOST, (ORGANIZATION, b"org-1"))))
        accepted = await client.receive_message()
        assert accepted["type"] == "websocket.accept"
        assert {(b"x-ms-region", b"local"), (ORGANIZATION, b"org-1")} <= {*accepted["headers"]}
        client.disconnect()
        await client.wait_closed()


def list_logged_users(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    names = ("request_id", "safety_identifier", "user")
    return [
        {name: getattr(record, name) for name in names if hasattr(record, name)}
        for record in caplog.records
        if record.name == "antiphon.transport.http.request"
    ]


async def test_user_identifiers_are_logged_and_truncated(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with run_api() as server:
        named = {"user": "ann", "safety_identifier": "s" * 500}
        for path, body in (("responses", RESPONSE_BODY), ("chat/completions", CHAT_BODY)):
            answer = await server.post(path, {**body, **named}, (b"x-request-id", path.encode().replace(b"/", b".")))
            assert answer.status == 200
        await server.post("responses", RESPONSE_BODY)
        await server.post("completions", {"model": "fake", "prompt": "hi", "user": "bo"}, (b"x-request-id", b"c"))
        await server.post("embeddings", {"model": "fake", "input": "hi", "user": "cy"}, (b"x-request-id", b"e"))
        assert list_logged_users(caplog) == [
            {"request_id": "responses", "user": "ann", "safety_identifier": "s" * 128},
            {"request_id": "chat.completions", "user": "ann", "safety_identifier": "s" * 128},
            {"request_id": "c", "user": "bo"},
            {"request_id": "e", "user": "cy"},
        ]
        metrics = await call(server.app, "GET", "/metrics")
        assert b"ann" not in metrics.body


async def test_user_identifiers_on_a_websocket_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with run_api() as server, open_websocket(server.app) as client:
        await client.create(user="ann")
        assert [one["user"] for one in list_logged_users(caplog)] == ["ann"]
