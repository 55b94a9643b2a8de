"""Tests /v1/antiphon/keys: keys are created, listed and revoked by operators, and their secrets are shown once.

Covers `protocol/bodies/keys.py`, `protocol/types/operations/keys.py`, `service/operations/key_administration.py` and
`transport/operating/administration.py`.
"""

import json
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Any

import msgspec
import pytest

from antiphon.config.rate_limits import QuotaSettings
from antiphon.ids import new_id
from antiphon.protocol.types.operations.keys import ApiKeyObject, CreatedApiKey, KeyList, UsageList
from antiphon.stores.sqlite import SqliteStore
from antiphon.testing.rows.response_rows import TTL
from antiphon.wiring import ServerLifecycle
from tests.api.app import ApiServer, run_api
from tests.support.asgi_client import JSON, AsgiResponse, Header, call

pytestmark = pytest.mark.anyio


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with run_api(SqliteStore(str(tmp_path / "store.db"), TTL), api_key=["root-key"]) as server:
        yield server


ROOT_KEY: Header = (b"authorization", b"Bearer root-key")


def make_header(key: str) -> Header:
    return b"authorization", f"Bearer {key}".encode()


async def send(server: ApiServer, method: str, path: str, body: Any = None, key: Header = ROOT_KEY) -> AsgiResponse:
    content = b"" if body is None else json.dumps(body).encode()
    return await call(server.app, method, f"/v1/antiphon/{path}", JSON, key, body=[content])


async def create(server: ApiServer, **fields: Any) -> CreatedApiKey:
    answer = await send(server, "POST", "keys", {"tenant": "acme", **fields})
    assert answer.status == 200, answer.body
    return msgspec.json.decode(answer.body, type=CreatedApiKey)


async def test_a_created_key_admits_its_tenant_until_it_is_revoked(server: ApiServer) -> None:
    created = await create(server, name="Ada's laptop")
    assert (created.tenant, created.name, created.scopes, created.state) == (
        "acme", "Ada's laptop", ["inference"], "good",
    )  # fmt: skip
    header = make_header(created.key)
    assert (await call(server.app, "GET", "/v1/models", header)).status == 200
    assert (await send(server, "GET", "keys", key=header)).status == 403
    for _ in range(2):
        revoked = await send(server, "POST", f"keys/{created.id}/revoke")
        assert msgspec.json.decode(revoked.body, type=ApiKeyObject).state == "revoked"
        assert (await call(server.app, "GET", "/v1/models", header)).status == 401


async def test_a_secret_is_shown_once_and_changes_are_logged(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "antiphon")
    created = await create(server, scopes=["admin", "inference"], expires_at=time() + 100)
    answers = [await send(server, "GET", "keys"), await send(server, "POST", f"keys/{created.id}/revoke")]
    assert all(created.key.encode() not in answer.body and created.id.encode() in answer.body for answer in answers)
    lines = [record.getMessage() for record in caplog.records if created.id in record.getMessage()]
    assert [line.partition(" by key given_")[0] for line in lines] == [
        f"key {created.id} of tenant acme was created",
        f"key {created.id} of tenant acme was revoked",
    ]
    assert created.key not in caplog.text


async def test_the_list_has_pages_tenants_limits_and_the_keys_of_the_settings(tmp_path: Path) -> None:
    quota = QuotaSettings(key_requests_per_minute=7)
    async with run_api(SqliteStore(str(tmp_path / "store.db"), TTL), api_key=["root-key"], quota=quota) as server:
        ids = [(await create(server, tenant=tenant)).id for tenant in ("a", "b", "a")]
        found: list[str] = []
        after = ""
        while True:
            answer = await send(server, "GET", f"keys?limit=2{after}")
            page = msgspec.json.decode(answer.body, type=KeyList)
            found += [key.id for key in page.data]
            assert [key.tenant for key in page.configured] == ["default"]
            assert page.data[0].limits.requests_per_minute == 7
            if not page.has_more:
                break
            after = f"&after={page.last_id}"
        assert found == sorted(ids, reverse=True)
        only = msgspec.json.decode((await send(server, "GET", "keys?tenant=b")).body, type=KeyList)
        assert ([key.id for key in only.data], only.configured) == ([ids[1]], [])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "tenant"),
        ({"tenant": "No Name"}, "tenant"),
        ({"tenant": "a", "scopes": []}, "scopes"),
        ({"tenant": "a", "scopes": ["root"]}, "scopes[0]"),
        ({"tenant": "a", "name": "x" * 101}, "name"),
        ({"tenant": "a", "name": "two\nlines"}, "name"),
        ({"tenant": "a", "expires_at": 1.0}, "expires_at"),
        ({"tenant": "a", "expires_at": "soon"}, "expires_at"),
    ],
)
async def test_an_invalid_key_is_rejected_with_its_field(server: ApiServer, body: Any, param: str) -> None:
    answer = await send(server, "POST", "keys", body)
    assert (answer.status, answer.error["param"]) == (400, param)


async def test_unknown_keys_and_cursors_are_rejected(server: ApiServer) -> None:
    for name in (new_id("key"), "x", "%00"):
        assert (await send(server, "POST", f"keys/{name}/revoke")).status == 404
    answer = await send(server, "GET", f"keys?after={new_id('key')}")
    assert (answer.status, answer.error["param"]) == (400, "after")


async def test_a_client_without_a_key_cannot_create_the_first_key(tmp_path: Path) -> None:
    async with run_api(SqliteStore(str(tmp_path / "store.db"), TTL)) as server:
        answer = await server.post("antiphon/keys", {"tenant": "acme", "scopes": ["admin"]})
        assert answer.status == 403
        assert "antiphon keys create" in answer.error["message"]
        assert (await server.get("antiphon/keys")).json()["data"] == []


@pytest.mark.parametrize("settings", [{}, {"disable_store": True}])
async def test_without_a_lasting_store_there_are_no_keys_to_manage(settings: dict[str, Any]) -> None:
    async with run_api(**settings) as server:
        for answer in (await server.get("antiphon/keys"), await server.post("antiphon/keys", {"tenant": "a"})):
            assert answer.status == 404
            assert "--api-key" in answer.error["message"]


async def test_usage_is_listed_per_day_and_key(server: ApiServer) -> None:
    keys = [await create(server) for _ in range(2)]
    body = {"model": "fake", "input": "hi"}
    for path, fields in (
        ("responses", body),
        ("responses", {**body, "store": False, "stream": True}),
        ("responses", {**body, "background": True}),
        ("chat/completions", {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}),
    ):
        content = json.dumps(fields).encode()
        answer = await call(server.app, "POST", f"/v1/{path}", JSON, make_header(keys[0].key), body=[content])
        assert answer.status == 200, answer.body
        if "background" in fields:  # wait for its end
            stream = f"/v1/responses/{answer.json()['id']}?stream=true"
            await call(server.app, "GET", stream, make_header(keys[0].key))
    assert isinstance(server.app.lifecycle, ServerLifecycle)
    components = server.app.lifecycle.components
    await components.usage.flush()
    answer = await send(server, "GET", "usage?days=2&tenant=acme")
    [used] = msgspec.json.decode(answer.body, type=UsageList).data
    assert (used.tenant, used.key, used.responses) == ("acme", keys[0].id, 4)
    assert used.date == datetime.now(UTC).date().isoformat()
    assert used.output_tokens > 0
    assert msgspec.json.decode((await send(server, "GET", "usage?tenant=other")).body, type=UsageList).data == []
    for query in ("days=0", "days=401", "days=x"):
        answer = await send(server, "GET", f"usage?{query}")
        assert (answer.status, answer.error["param"]) == (400, "days")
