"""Headers that every answer has, whatever it says and wherever it comes from; and whose users are in the log."""

import json
import logging
from typing import Any

import pytest

from tests.api.app import Api, api
from tests.support.asgi_client import HOST, Answer, Header, call
from tests.transport.websocket.ws_client import Talk, socket_scope, talking

pytestmark = pytest.mark.anyio

ORGANIZATION, VERSION = b"openai-organization", b"openai-version"
FORMAT, LOAD = b"endpoint-load-metrics-format", b"endpoint-load-metrics"
HI = {"model": "fake", "input": "hi"}
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


async def everywhere(server: Api, *headers: Header) -> list[Answer]:
    """Answers of all sorts: JSON, streams, errors, and what is for everybody."""
    made = await server.create()
    return [
        await server.post("responses", HI, *headers),
        await server.post("responses", {**HI, "stream": True}, *headers),
        await server.post("responses", {"model": "fake"}, *headers),
        await server.post("responses", b"{", *headers),
        await server.post("chat/completions", {**CHAT, "stream": True}, *headers),
        await server.post(f"responses/{made['id']}/cancel", {}, *headers),
        await call(server.app, "GET", f"/v1/responses/{made['id']}?stream=true", *headers),
        await call(server.app, "DELETE", f"/v1/responses/{made['id']}", *headers),
        await call(server.app, "GET", "/health", *headers),
        await call(server.app, "GET", "/nowhere", *headers),
        await call(server.app, "PATCH", "/v1/models", *headers),
    ]


@pytest.mark.shows("H2.2", "H1.5")
async def test_organization_and_version_come_back_or_are_the_operators() -> None:
    async with api() as server:
        for answer in await everywhere(server):
            assert answer.header(ORGANIZATION) is answer.header(VERSION) is None
        for answer in await everywhere(server, (ORGANIZATION, b"org-1"), (VERSION, b"2020-10-01")):
            assert (answer.header(ORGANIZATION), answer.header(VERSION)) == (b"org-1", b"2020-10-01")
    async with api(default_openai_organization="ours", default_openai_version="2024-01-01") as server:
        for answer in await everywhere(server):
            assert (answer.header(ORGANIZATION), answer.header(VERSION)) == (b"ours", b"2024-01-01")
        for answer in await everywhere(server, (ORGANIZATION, b"org-1")):
            assert (answer.header(ORGANIZATION), answer.header(VERSION)) == (b"org-1", b"2024-01-01")


@pytest.mark.shows("H2.2")
@pytest.mark.parametrize("value", [b"", b"a b", b"a\r\nx: y", b"\xff", b"x" * 129])
async def test_what_is_ill_formed_does_not_come_back(value: bytes) -> None:
    async with api() as server:
        assert (await server.post("responses", HI, (ORGANIZATION, value))).header(ORGANIZATION) is None
    async with api(default_openai_organization="ours") as server:
        assert (await server.post("responses", HI, (ORGANIZATION, value))).header(ORGANIZATION) == b"ours"


@pytest.mark.shows("H2.5")
async def test_azures_headers_are_sent_to_who_wants_them() -> None:
    async with api() as server:
        for answer in await everywhere(server):
            assert answer.header(b"x-ms-region") is answer.header(b"api-supported-versions") is None
    async with api(azure_headers=True, azure_region="westeurope") as server:
        for answer in await everywhere(server):
            assert answer.header(b"x-ms-region") == b"westeurope"
            assert answer.header(b"x-ms-request-id") == answer.header(b"x-request-id")
            assert answer.header(b"api-supported-versions") == b"v1"


@pytest.mark.shows("H4.1")
async def test_the_load_is_told_to_who_asks_for_it() -> None:
    async with api() as server:
        for answer in await everywhere(server):
            assert answer.header(LOAD) is None
        for answer in await everywhere(server, (FORMAT, b"JSON")):
            kind, _, told = (answer.header(LOAD) or b"").partition(b" ")
            named: dict[str, float] = json.loads(told)["named_metrics"]
            assert (kind, named) == (b"JSON", {"num_requests_running": 0.0, "num_requests_waiting": 0.0})
        answer = await server.post("responses", HI, (FORMAT, b"text"))
        expected = b"TEXT named_metrics.num_requests_running=0, named_metrics.num_requests_waiting=0"
        assert answer.header(LOAD) == expected
        assert (await server.post("responses", HI, (FORMAT, b"xml"))).header(LOAD) is None


async def test_a_websocket_has_them_too() -> None:
    async with api(azure_headers=True) as server:
        talk = Talk(server.app, socket_scope("/v1/responses", (HOST, (ORGANIZATION, b"org-1"))))
        accepted = await talk.message()
        assert accepted["type"] == "websocket.accept"
        assert {(b"x-ms-region", b"local"), (ORGANIZATION, b"org-1")} <= {*accepted["headers"]}
        talk.leaves()
        await talk.over()


def users(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    names = ("request_id", "safety_identifier", "user")
    return [
        {name: getattr(record, name) for name in names if hasattr(record, name)}
        for record in caplog.records
        if record.name == "antiphon.transport.http.request"
    ]


async def test_the_log_says_whose_a_request_was(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with api() as server:
        named = {"user": "ann", "safety_identifier": "s" * 500}
        for path, body in (("responses", HI), ("chat/completions", CHAT)):
            answer = await server.post(path, {**body, **named}, (b"x-request-id", path.encode().replace(b"/", b".")))
            assert answer.status == 200
        await server.post("responses", HI)
        await server.post("completions", {"model": "fake", "prompt": "hi", "user": "bo"}, (b"x-request-id", b"c"))
        assert users(caplog) == [
            {"request_id": "responses", "user": "ann", "safety_identifier": "s" * 128},
            {"request_id": "chat.completions", "user": "ann", "safety_identifier": "s" * 128},
            {"request_id": "c", "user": "bo"},
        ]
        metrics = await call(server.app, "GET", "/metrics")
        assert b"ann" not in metrics.body


async def test_a_websocket_says_so_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with api() as server, talking(server.app) as talk:
        await talk.made(user="ann")
        assert [one["user"] for one in users(caplog)] == ["ann"]
