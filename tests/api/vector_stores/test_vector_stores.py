"""Tests /v1/vector_stores on the complete application; the openai package's types check every reply.

Covers `protocol/types/vector_stores.py`, `protocol/bodies/vector_stores.py`, `service/vector_stores/vector_stores.py`,
`service/vector_stores/objects.py` and `transport/endpoints/vector_stores.py`.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from time import time
from typing import Any

import pytest

from antiphon.stores.registry import make_store
from antiphon.testing.rows.response_rows import Clock
from tests.api.app import run_api
from tests.api.vector_stores.vector_api import VectorApi
from tests.support.asgi_client import call

pytestmark = pytest.mark.anyio
DAY = 86_400


@pytest.fixture
async def api() -> AsyncIterator[VectorApi]:
    async with run_api() as server:
        yield VectorApi(server)


@pytest.mark.shows("E.17", "E5.1")
async def test_a_vector_store_is_created_retrieved_changed_and_deleted(api: VectorApi) -> None:
    store = await api.create(name="manuals", description="All of them", metadata={"a": "b"})
    assert store["id"].startswith("vs_")
    assert (store["name"], store["description"], store["metadata"]) == ("manuals", "All of them", {"a": "b"})
    assert (store["status"], store["usage_bytes"], store["file_counts"]["total"]) == ("completed", 0, 0)
    assert store["created_at"] == store["last_active_at"]
    assert await api.get(store["id"]) == store
    changed = await api.post(store["id"], {"name": "guides", "metadata": {"c": "d"}})
    assert changed == {**store, "name": "guides", "metadata": {"c": "d"}}
    assert await api.post(store["id"], {"name": None, "metadata": None}) == {**store, "name": "", "metadata": {}}
    assert await api.post(store["id"], {}) == {**store, "name": "", "metadata": {}}
    deleted = await api.delete(store["id"])
    assert deleted == {"id": store["id"], "object": "vector_store.deleted", "deleted": True}
    for method in ("GET", "DELETE", "POST"):
        assert (await api.refuse(store["id"], {}, method))[:2] == (404, "vector_store_id")


async def test_a_vector_store_without_any_field_has_the_defaults_of_the_api(api: VectorApi) -> None:
    answer = await api.server.post("vector_stores")
    store = answer.json()
    assert {**store, "id": "", "created_at": 0, "last_active_at": 0} == {
        "id": "",
        "object": "vector_store",
        "created_at": 0,
        "name": "",
        "description": None,
        "usage_bytes": 0,
        "file_counts": {"in_progress": 0, "completed": 0, "failed": 0, "cancelled": 0, "total": 0},
        "status": "completed",
        "expires_after": None,
        "expires_at": None,
        "last_active_at": 0,
        "metadata": {},
    }


@pytest.mark.shows("E5.3")
async def test_vector_stores_are_listed_page_by_page_in_both_directions(api: VectorApi) -> None:
    ids = [(await api.create())["id"] for _ in range(5)]
    newest_first = ids[::-1]

    async def list_ids(query: str) -> tuple[list[str], bool]:
        page = await api.get(f"?{query}")
        return [store["id"] for store in page["data"]], page["has_more"]

    assert await list_ids("") == (newest_first, False)
    assert await list_ids("order=asc&limit=2") == (ids[:2], True)
    assert await list_ids(f"limit=2&after={ids[3]}") == ([ids[2], ids[1]], True)
    assert await list_ids(f"limit=2&before={ids[1]}") == ([ids[3], ids[2]], True)
    assert await list_ids(f"before={ids[3]}") == ([ids[4]], False)
    assert await list_ids(f"order=asc&limit=3&before={ids[1]}") == ([ids[0]], False)
    for param in ("after", "before"):
        assert (await api.refuse(f"?{param}=vs_1", method="GET"))[:2] == (400, param)


@pytest.mark.shows("E5.8")
async def test_a_vector_store_expires_days_after_its_last_use() -> None:
    clock = Clock()
    clock.now = time()
    store = make_store("memory", 1e9, clock)
    async with run_api(store) as server:
        api = VectorApi(server)
        made = await api.create_indexed("apples", expires_after={"anchor": "last_active_at", "days": 2})
        assert made["expires_after"] == {"anchor": "last_active_at", "days": 2}
        assert made["expires_at"] == pytest.approx(made["last_active_at"] + 2 * DAY, abs=1)
        clock.now += 1.5 * DAY
        await api.post(f"{made['id']}/search", {"query": "apples"})
        used = await api.get(made["id"])
        assert used["expires_at"] == pytest.approx(made["expires_at"] + 1.5 * DAY, abs=2)
        clock.now += DAY
        await api.post(f"{made['id']}/files", {"file_id": api.file_ids[0]})
        assert (await api.get(made["id"]))["expires_at"] == pytest.approx(used["expires_at"] + DAY, abs=2)
        clock.now += 3 * DAY
        await server.app.lifecycle.components.file_sweeper.expire()  # type: ignore[attr-defined]  # set by `build_app`
        assert await store.purge_vector_chunks(1) == 0  # none remain
        expired = await api.get(made["id"])
        assert (expired["status"], expired["file_counts"]["total"]) == ("expired", 0)
        status, _, message = await api.refuse(f"{made['id']}/search", {"query": "apples"})
        assert status == 400
        assert "expired" in message
        assert (await server.get("files?limit=10")).json()["data"]  # the file itself remains


async def test_the_expiry_can_be_changed_and_removed(api: VectorApi) -> None:
    store = await api.create()
    changed = await api.post(store["id"], {"expires_after": {"anchor": "last_active_at", "days": 7}})
    assert changed["expires_at"] == pytest.approx(store["last_active_at"] + 7 * DAY, abs=1)
    assert (await api.post(store["id"], {"name": "x"}))["expires_at"] == changed["expires_at"]
    removed = await api.post(store["id"], {"expires_after": None})
    assert (removed["expires_after"], removed["expires_at"]) == (None, None)


BAD_BODIES: list[tuple[dict[str, Any], str]] = [
    ({"name": 1}, "name"),
    ({"name": "x" * 513}, "name"),
    ({"description": "\0"}, "description"),
    ({"file_ids": ["file-1"]}, "file_ids[0]"),
    ({"file_ids": ["x"] * 501}, "file_ids"),
    ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
    ({"expires_after": {"anchor": "created_at", "days": 1}}, "expires_after.anchor"),
    ({"expires_after": {"anchor": "last_active_at", "days": 366}}, "expires_after.days"),
    ({"chunking_strategy": {"type": "other"}}, "chunking_strategy.type"),
    (
        {"chunking_strategy": {"type": "static", "static": {"max_chunk_size_tokens": 99, "chunk_overlap_tokens": 0}}},
        "chunking_strategy.static.max_chunk_size_tokens",
    ),
    (
        {"chunking_strategy": {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 51}}},
        "chunking_strategy.static.chunk_overlap_tokens",
    ),
]


@pytest.mark.shows("E5.4")
@pytest.mark.parametrize(("body", "param"), BAD_BODIES)
async def test_a_bad_field_is_a_400_with_its_name_and_nothing_is_created(
    api: VectorApi, body: dict[str, Any], param: str
) -> None:
    assert (await api.refuse("", body))[:2] == (400, param)
    assert (await api.get())["data"] == []


async def test_the_number_of_vector_stores_is_limited() -> None:
    async with run_api(vector_stores_max_entries=1) as server:
        api = VectorApi(server)
        store = await api.create()
        status, _, message = await api.refuse("", {})
        assert (status, "At most 1" in message) == (400, True)
        await api.delete(store["id"])
        await api.create()


@pytest.mark.shows("E5.5")
async def test_vector_stores_of_other_tenants_are_unknown(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one key-of-one\ntwo key-of-two\n")
    async with run_api(api_key_file=keys) as server:

        async def send(tenant: str, method: str, path: str) -> Any:
            header = (b"authorization", f"Bearer key-of-{tenant}".encode())
            return await call(server.app, method, f"/v1/vector_stores{path}", header)

        store_id = (await send("one", "POST", "")).json()["id"]
        assert (await send("one", "GET", f"/{store_id}")).status == 200
        for method, path in [("GET", ""), ("DELETE", ""), ("GET", "/files"), ("GET", "/files/file-1")]:
            foreign = await send("two", method, f"/{store_id}{path}")
            unknown = await send("two", method, f"/vs_0{path}")
            assert (foreign.status, foreign.error["param"]) == (404, "vector_store_id")
            assert unknown.error["message"].replace("vs_0", store_id) == foreign.error["message"]
        assert (await send("two", "GET", "")).json()["data"] == []


async def test_nothing_is_created_on_a_server_that_stores_nothing() -> None:
    async with run_api(disable_store=True) as server:
        assert (await VectorApi(server).refuse("", {}))[0] == 404
