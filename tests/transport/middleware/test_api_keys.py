"""Keys of the store at the edge: whose a request is, what a key may do, and when it may no more."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import time
from typing import Any

import pytest

from antiphon.service.access.api_key_format import issue
from antiphon.stores.base import ApiKey, Store
from antiphon.stores.registry import make_store
from antiphon.transport.middleware.auth import PUBLIC
from antiphon.wiring import Lifecycle
from tests.api.app import Api, api
from tests.stores.rows import TTL, Clock
from tests.support.asgi_client import JSON, Answer, Header, call
from tests.transport.websocket.ws_client import knock, talking

pytestmark = pytest.mark.anyio


class House:
    """A server whose keys are in its store."""

    def __init__(self, server: Api, store: Store, clock: Clock) -> None:
        self.server = server
        self.app = server.app
        self.store = store
        self.clock = clock

    async def key(self, tenant: str, *scopes: str, days: float | None = None) -> tuple[ApiKey, Header]:
        expires = None if days is None else self.clock() + days
        row, key = issue(tenant, "", scopes, self.clock(), expires)
        await self.store.add_api_key(row)
        return row, (b"authorization", b"Bearer " + key.encode())

    async def revoke(self, row: ApiKey) -> None:
        await self.store.revoke_api_key(row.id)
        await self.look()

    async def look(self) -> None:
        """As the server does every few seconds."""
        life = self.app.lifecycle
        assert isinstance(life, Lifecycle)
        await life.parts.keys.look()

    async def get(self, path: str, *headers: Header) -> Answer:
        return await call(self.app, "GET", path, *headers)

    async def post(self, path: str, body: bytes, *headers: Header) -> Answer:
        return await call(self.app, "POST", path, JSON, *headers, body=[body])


@asynccontextmanager
async def house(**settings: Any) -> AsyncIterator[House]:
    clock = Clock()
    clock.now = time()
    store = make_store("memory", TTL, clock)
    async with api(store, **settings) as server:
        yield House(server, store, clock)


ASKED = b'{"model": "fake", "input": "hi"}'


@pytest.mark.shows("H.1")
async def test_who_comes_with_a_tenants_key_has_what_the_tenant_has_and_no_more() -> None:
    async with house() as one:
        (_, alpha), (_, again), (_, beta) = await one.key("alpha"), await one.key("alpha"), await one.key("beta")
        made = (await one.post("/v1/responses", ASKED, alpha)).json()["id"]
        assert (await one.get(f"/v1/responses/{made}", again)).status == 200
        foreign = await one.get(f"/v1/responses/{made}", beta)
        unknown = await one.get(f"/v1/responses/{made[:-4]}ffff", beta)
        assert (foreign.status, unknown.status) == (404, 404)
        assert foreign.body.replace(made.encode(), b"") == unknown.body.replace(f"{made[:-4]}ffff".encode(), b"")


async def test_as_soon_as_there_is_a_key_nobody_comes_in_without_one() -> None:
    async with house() as one:
        assert (await one.get("/v1/models")).status == 200
        row, key = await one.key("alpha")
        assert (await one.get("/v1/models", key)).status == 200
        assert (await one.get("/v1/models")).status == 401
        await one.revoke(row)
        assert (await one.get("/v1/models")).status == 401
        assert (await one.get("/health")).status == 200


async def test_the_first_key_is_its_tenants_though_nobody_needs_one_yet() -> None:
    """Else what its client stores would be everybody's."""
    async with house() as one:
        _, key = await one.key("alpha")
        made = (await one.post("/v1/responses", ASKED, key)).json()["id"]
        assert await one.store.get("alpha", made) is not None
        assert await one.store.get("default", made) is None


@pytest.mark.shows("H5.1")
async def test_where_there_are_no_keys_what_looks_like_one_is_accepted_too() -> None:
    async with house() as one:
        _, key = issue("alpha", "", (), 0.0, None)
        assert (await one.get("/v1/models", (b"authorization", b"Bearer " + key.encode()))).status == 200


async def test_the_openai_header_and_anthropics_are_one() -> None:
    async with house() as one:
        (_, alpha), (_, beta) = await one.key("alpha"), await one.key("beta")
        bare = (b"x-api-key", alpha[1].removeprefix(b"Bearer "))
        made = (await one.post("/v1/responses", ASKED, bare)).json()["id"]
        assert (await one.get(f"/v1/responses/{made}", alpha)).status == 200
        assert (await one.get("/v1/models", alpha, bare)).status == 200
        assert (await one.get("/v1/models", (b"authorization", b"Bearer EMPTY"), bare)).status == 200
        assert (await one.get("/v1/models", beta, bare)).status == 401


async def test_whatever_is_wrong_with_a_key_looks_the_same() -> None:
    async with house() as one:
        (revoked, first), (_, good), (_, second) = await one.key("a"), await one.key("a"), await one.key("a", days=5)
        for key in (first, good, second):
            assert (await one.get("/v1/models", key)).status == 200
        await one.revoke(revoked)
        one.clock.now += 10
        await one.look()
        life = one.app.lifecycle
        assert isinstance(life, Lifecycle)
        life.parts.keys._clock = one.clock
        nothing = await one.get("/v1/models")
        assert nothing.status == 401
        forged = (b"authorization", good[1][:-1] + (b"0" if good[1][-1:] != b"0" else b"1"))
        for key in (first, second, forged, (b"authorization", b"Bearer x")):
            answer = await one.get("/v1/models", key)
            assert (answer.status, answer.body) == (401, nothing.body)


@pytest.mark.parametrize(
    ("scopes", "metrics", "responses"), [((), 403, 200), (("admin",), 200, 403), (("admin", "inference"), 200, 200)]
)
async def test_a_key_may_do_what_its_scopes_say(scopes: tuple[str, ...], metrics: int, responses: int) -> None:
    async with house() as one:
        _, key = await one.key("alpha", *scopes)
        refused = await one.get("/metrics", key)
        assert refused.status == metrics
        assert (await one.post("/v1/responses", ASKED, key)).status == responses
        assert (await one.get("/health", key)).status == 200
        if metrics == 403:
            assert refused.error["type"] == "permission_error"
            assert "admin" in refused.error["message"]


async def test_what_needs_no_scope_is_what_is_public() -> None:
    async with api() as server:
        routes = {
            route.path.encode()
            for methods in server.app._router._exact.values()
            for route in methods.values()
            if route.needs is None
        }
    assert routes == PUBLIC


async def test_a_websocket_is_told_and_closed_at_the_next_message_once_its_key_is_revoked() -> None:
    async with house() as one:
        row, key = await one.key("alpha")
        _, other = await one.key("alpha")
        async with talking(one.app, key) as talk, talking(one.app, other) as unharmed:
            await talk.made()
            await one.revoke(row)
            told = await talk.refused()
            assert (told["status"], told["error"]["code"]) == (401, "invalid_api_key")
            closed = await talk.message()
            assert (closed["type"], closed["code"]) == ("websocket.close", 1008)
            await unharmed.made()
        assert (await knock(one.app, (b"host", b"localhost"), key)).status == 401


async def test_a_websocket_that_needed_no_key_needs_one_once_there_are_some() -> None:
    async with house() as one, talking(one.app) as talk:
        await talk.made()
        await one.key("alpha")
        await one.look()
        assert (await talk.refused())["status"] == 401


async def test_what_one_connection_remembers_is_not_anothers() -> None:
    async with house() as one:
        (_, alpha), (_, beta) = await one.key("alpha"), await one.key("beta")
        async with talking(one.app, alpha) as talk, talking(one.app, beta) as other:
            made = await talk.made(store=False)
            told = await other.refused(previous_response_id=made["id"])
            assert told["error"]["code"] == "previous_response_not_found"
            await talk.made(store=False, previous_response_id=made["id"])


async def test_each_key_may_open_so_many_websockets() -> None:
    async with house(max_websocket_connections_per_key=1) as one:
        (_, first), (_, second) = await one.key("alpha"), await one.key("alpha")
        async with talking(one.app, first), talking(one.app, second):
            assert (await knock(one.app, (b"host", b"localhost"), first)).status == 503


async def test_one_persons_machine_is_none_any_more_once_there_are_keys() -> None:
    """What a request may name on loopback, for as long as nobody else is served."""
    tool = b'[{"type": "mcp", "server_label": "x", "server_url": "http://127.0.0.1:1/mcp"}]'
    asked = b'{"model": "fake", "input": "hi", "tools": %b}' % tool
    async with house() as one:
        _, key = await one.key("alpha")
        refused = await one.post("/v1/responses", asked, key)
        assert (refused.status, refused.error["code"]) == (400, "invalid_url")


async def test_keys_stand_in_no_log_and_no_metric(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with house() as one:
            (row, key), (_, admin) = await one.key("alpha"), await one.key("ops", "admin")
            await one.post("/v1/responses", ASKED, key)
            await one.post("/v1/responses", b"{", key)
            await one.get("/v1/nowhere", key)
            async with talking(one.app, key) as talk:
                await talk.made()
            await one.revoke(row)
            refused = await one.get("/v1/models", key)
            metrics = await one.get("/metrics", admin)
    for sent in (key, admin):
        secret = sent[1].rpartition(b"_")[2]
        assert secret not in metrics.body + refused.body
        assert secret.decode() not in caplog.text


async def test_many_unknown_keys_at_once_do_not_break_anything() -> None:
    async with house() as one:
        _, good = await one.key("alpha")
        assert (await one.get("/v1/models", good)).status == 200
        unknown = [(b"authorization", b"Bearer " + issue("a", "", (), 0.0, None)[1].encode()) for _ in range(200)]
        answers = await asyncio.gather(*(one.get("/v1/models", key) for key in unknown))
        assert {answer.status for answer in answers} <= {401, 429}
        assert (await one.get("/v1/models", good)).status == 200
