"""API keys in the store, as the application enforces them: tenants, scopes, expiry and revocation."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import time
from typing import Any

import pytest

from antiphon.service.access.api_keys import issue
from antiphon.stores.base import ApiKey
from antiphon.stores.registry import make_store
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import TTL, Clock
from antiphon.transport.middleware.auth import PAGE, PUBLIC
from antiphon.wiring import ServerLifecycle
from tests.api.app import ApiServer, run_api
from tests.support.asgi_client import JSON, AsgiResponse, Header, call
from tests.transport.websocket.ws_client import fetch_rejection, open_websocket

pytestmark = pytest.mark.anyio


class KeyedServer:
    """A server whose API keys are in its store."""

    def __init__(self, server: ApiServer, store: Store, clock: Clock) -> None:
        self.server = server
        self.app = server.app
        self.store = store
        self.clock = clock

    async def add_key(self, tenant: str, *scopes: str, lifetime: float | None = None) -> tuple[ApiKey, Header]:
        expires = None if lifetime is None else self.clock() + lifetime
        row, key = issue(tenant, "", scopes, self.clock(), expires)
        await self.store.add_api_key(row)
        return row, (b"authorization", b"Bearer " + key.encode())

    async def revoke(self, row: ApiKey) -> None:
        await self.store.revoke_api_key(row.id)
        await self.refresh_keys()

    async def refresh_keys(self) -> None:
        """Reload the keys, as the server does every few seconds."""
        lifecycle = self.app.lifecycle
        assert isinstance(lifecycle, ServerLifecycle)
        await lifecycle.components.api_keys.refresh()

    async def get(self, path: str, *headers: Header) -> AsgiResponse:
        return await call(self.app, "GET", path, *headers)

    async def post(self, path: str, body: bytes, *headers: Header) -> AsgiResponse:
        return await call(self.app, "POST", path, JSON, *headers, body=[body])


@asynccontextmanager
async def run_keyed_server(**settings: Any) -> AsyncIterator[KeyedServer]:
    clock = Clock()
    clock.now = time()
    store = make_store("memory", TTL, clock)
    async with run_api(store, **settings) as server:
        yield KeyedServer(server, store, clock)


BODY = b'{"model": "fake", "input": "hi"}'


@pytest.mark.shows("H.1")
async def test_a_key_gives_access_to_the_responses_of_its_tenant_only() -> None:
    async with run_keyed_server() as server:
        (_, alpha), (_, again), (_, beta) = (
            await server.add_key("alpha"),
            await server.add_key("alpha"),
            await server.add_key("beta"),
        )
        made = (await server.post("/v1/responses", BODY, alpha)).json()["id"]
        assert (await server.get(f"/v1/responses/{made}", again)).status == 200
        foreign = await server.get(f"/v1/responses/{made}", beta)
        unknown = await server.get(f"/v1/responses/{made[:-4]}ffff", beta)
        assert (foreign.status, unknown.status) == (404, 404)
        assert foreign.body.replace(made.encode(), b"") == unknown.body.replace(f"{made[:-4]}ffff".encode(), b"")


async def test_once_a_key_exists_every_request_requires_one() -> None:
    async with run_keyed_server() as server:
        assert (await server.get("/v1/models")).status == 200
        row, key = await server.add_key("alpha")
        assert (await server.get("/v1/models", key)).status == 200
        assert (await server.get("/v1/models")).status == 401
        await server.revoke(row)
        assert (await server.get("/v1/models")).status == 401
        assert (await server.get("/health")).status == 200


async def test_the_first_key_selects_its_tenant_before_keys_are_required() -> None:
    """Otherwise the responses of its client would belong to the default tenant, which needs no key."""
    async with run_keyed_server() as server:
        _, key = await server.add_key("alpha")
        made = (await server.post("/v1/responses", BODY, key)).json()["id"]
        assert await server.store.get("alpha", made) is not None
        assert await server.store.get("default", made) is None


@pytest.mark.shows("H5.1")
async def test_without_stored_keys_an_unknown_key_is_accepted() -> None:
    async with run_keyed_server() as server:
        _, key = issue("alpha", "", (), 0.0, None)
        assert (await server.get("/v1/models", (b"authorization", b"Bearer " + key.encode()))).status == 200


async def test_the_key_headers_of_openai_and_anthropic_are_equivalent() -> None:
    async with run_keyed_server() as server:
        (_, alpha), (_, beta) = await server.add_key("alpha"), await server.add_key("beta")
        anthropic = (b"x-api-key", alpha[1].removeprefix(b"Bearer "))
        made = (await server.post("/v1/responses", BODY, anthropic)).json()["id"]
        assert (await server.get(f"/v1/responses/{made}", alpha)).status == 200
        assert (await server.get("/v1/models", alpha, anthropic)).status == 200
        assert (await server.get("/v1/models", (b"authorization", b"Bearer EMPTY"), anthropic)).status == 200
        assert (await server.get("/v1/models", beta, anthropic)).status == 401


async def test_every_invalid_key_gets_the_same_reply() -> None:
    async with run_keyed_server() as server:
        (revoked, first), (_, good), (_, second) = (
            await server.add_key("a"),
            await server.add_key("a"),
            await server.add_key("a", lifetime=5),
        )
        for key in (first, good, second):
            assert (await server.get("/v1/models", key)).status == 200
        await server.revoke(revoked)
        server.clock.now += 10
        await server.refresh_keys()
        lifecycle = server.app.lifecycle
        assert isinstance(lifecycle, ServerLifecycle)
        lifecycle.components.api_keys._clock = server.clock
        nothing = await server.get("/v1/models")
        assert nothing.status == 401
        forged = (b"authorization", good[1][:-1] + (b"0" if good[1][-1:] != b"0" else b"1"))
        for key in (first, second, forged, (b"authorization", b"Bearer x")):
            answer = await server.get("/v1/models", key)
            assert (answer.status, answer.body) == (401, nothing.body)


@pytest.mark.parametrize(
    ("scopes", "metrics", "responses"), [((), 403, 200), (("admin",), 200, 403), (("admin", "inference"), 200, 200)]
)
async def test_a_key_is_restricted_to_its_scopes(scopes: tuple[str, ...], metrics: int, responses: int) -> None:
    async with run_keyed_server() as server:
        _, key = await server.add_key("alpha", *scopes)
        refused = await server.get("/metrics", key)
        assert refused.status == metrics
        assert (await server.post("/v1/responses", BODY, key)).status == responses
        assert (await server.get("/health", key)).status == 200
        if metrics == 403:
            assert refused.error["type"] == "permission_error"
            assert "admin" in refused.error["message"]


async def test_the_routes_without_a_scope_are_the_public_ones() -> None:
    async with run_api() as server:
        routes = {
            route.path.encode()
            for methods in server.app._router._exact.values()
            for route in methods.values()
            if route.needs is None
        }
    assert routes == PUBLIC | PAGE


async def test_a_websocket_with_a_revoked_key_is_closed_at_the_next_message() -> None:
    async with run_keyed_server() as server:
        row, key = await server.add_key("alpha")
        _, other = await server.add_key("alpha")
        async with open_websocket(server.app, key) as client, open_websocket(server.app, other) as unharmed:
            await client.create()
            await server.revoke(row)
            error = await client.create_rejected()
            assert (error["status"], error["error"]["code"]) == (401, "invalid_api_key")
            closed = await client.receive_message()
            assert (closed["type"], closed["code"]) == ("websocket.close", 1008)
            await unharmed.create()
        assert (await fetch_rejection(server.app, (b"host", b"localhost"), key)).status == 401


async def test_a_websocket_opened_without_a_key_is_rejected_once_keys_exist() -> None:
    async with run_keyed_server() as server, open_websocket(server.app) as client:
        await client.create()
        await server.add_key("alpha")
        await server.refresh_keys()
        assert (await client.create_rejected())["status"] == 401


async def test_a_websocket_cannot_continue_a_response_cached_by_another() -> None:
    async with run_keyed_server() as server:
        (_, alpha), (_, beta) = await server.add_key("alpha"), await server.add_key("beta")
        async with open_websocket(server.app, alpha) as client, open_websocket(server.app, beta) as other:
            made = await client.create(store=False)
            error = await other.create_rejected(previous_response_id=made["id"])
            assert error["error"]["code"] == "previous_response_not_found"
            await client.create(store=False, previous_response_id=made["id"])


async def test_the_websockets_of_each_key_are_limited() -> None:
    async with run_keyed_server(max_websocket_connections_per_key=1) as server:
        (_, first), (_, second) = await server.add_key("alpha"), await server.add_key("alpha")
        async with open_websocket(server.app, first), open_websocket(server.app, second):
            assert (await fetch_rejection(server.app, (b"host", b"localhost"), first)).status == 503


async def test_loopback_urls_in_requests_are_rejected_once_keys_exist() -> None:
    """A request may name URLs on loopback only while the server has a single user."""
    tool = b'[{"type": "mcp", "server_label": "x", "server_url": "http://127.0.0.1:1/mcp"}]'
    body = b'{"model": "fake", "input": "hi", "tools": %b}' % tool
    async with run_keyed_server() as server:
        _, key = await server.add_key("alpha")
        refused = await server.post("/v1/responses", body, key)
        assert (refused.status, refused.error["code"]) == (400, "invalid_url")


async def test_keys_appear_in_no_log_and_no_metric(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with run_keyed_server() as server:
            (row, key), (_, admin) = await server.add_key("alpha"), await server.add_key("ops", "admin")
            await server.post("/v1/responses", BODY, key)
            await server.post("/v1/responses", b"{", key)
            await server.get("/v1/nowhere", key)
            async with open_websocket(server.app, key) as client:
                await client.create()
            await server.revoke(row)
            refused = await server.get("/v1/models", key)
            metrics = await server.get("/metrics", admin)
    for sent in (key, admin):
        secret = sent[1].rpartition(b"_")[2]
        assert secret not in metrics.body + refused.body
        assert secret.decode() not in caplog.text


async def test_many_unknown_keys_at_once_do_not_lock_out_a_valid_one() -> None:
    async with run_keyed_server() as server:
        _, good = await server.add_key("alpha")
        assert (await server.get("/v1/models", good)).status == 200
        unknown = [(b"authorization", b"Bearer " + issue("a", "", (), 0.0, None)[1].encode()) for _ in range(200)]
        answers = await asyncio.gather(*(server.get("/v1/models", key) for key in unknown))
        assert {answer.status for answer in answers} <= {401, 429}
        assert (await server.get("/v1/models", good)).status == 200
