"""Tests /v1/vector_stores/{id}/files, …/file_batches and …/search on the complete application.

Covers `service/vector_stores/store_files.py` and `transport/endpoints/vector_store_files.py`.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from antiphon.engines.fake import FakeEngine, FakeSettings
from tests.api.app import run_api
from tests.api.vector_stores.vector_api import VectorApi
from tests.support.media_files import png

pytestmark = pytest.mark.anyio
STATIC = {"type": "static", "static": {"max_chunk_size_tokens": 800, "chunk_overlap_tokens": 400}}
SMALL: dict[str, Any] = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}}
FRUIT, LAW, SEA = "Apples and pears grow on trees.", "A law was passed in parliament.", "Otters swim in the sea."


@pytest.fixture
async def api() -> AsyncIterator[VectorApi]:
    async with run_api(lease_seconds=600.0) as server:  # files are indexed when they are added, not when leases end
        yield VectorApi(server)


@pytest.mark.shows("E5.1", "E5.2")
async def test_a_file_is_added_indexed_found_and_removed(api: VectorApi) -> None:
    store_id, file_id = (await api.create())["id"], await api.upload(FRUIT)
    file = await api.post(f"{store_id}/files", {"file_id": file_id, "attributes": {"year": 2026, "old": False}})
    assert (file["id"], file["vector_store_id"], file["last_error"]) == (file_id, store_id, None)
    assert file["chunking_strategy"] == STATIC
    assert file["attributes"] == {"year": 2026, "old": False}
    await api.wait(store_id)
    indexed = await api.get(f"{store_id}/files/{file_id}")
    assert indexed == {**file, "status": "completed", "usage_bytes": indexed["usage_bytes"]}
    assert indexed["usage_bytes"] == len(FRUIT) + 64 * 2
    store = await api.get(store_id)
    assert (store["status"], store["usage_bytes"]) == ("completed", indexed["usage_bytes"])
    assert store["file_counts"] == {"in_progress": 0, "completed": 1, "failed": 0, "cancelled": 0, "total": 1}
    content = await api.get(f"{store_id}/files/{file_id}/content")
    assert content["data"] == [{"type": "text", "text": FRUIT}]
    assert await api.delete(f"{store_id}/files/{file_id}") == {
        "id": file_id,
        "object": "vector_store.file.deleted",
        "deleted": True,
    }
    assert (await api.post(f"{store_id}/search", {"query": "apples"}))["data"] == []
    assert (await api.server.get(f"files/{file_id}")).status == 200
    for method, path in [("GET", ""), ("DELETE", ""), ("GET", "/content"), ("POST", "")]:
        refusal = await api.refuse(f"{store_id}/files/{file_id}{path}", {"attributes": {}}, method)
        assert refusal[:2] == (404, "file_id")


@pytest.mark.shows("E5.7")
async def test_attributes_are_replaced_and_filter_searches(api: VectorApi) -> None:
    store = await api.create_indexed(FRUIT, LAW)
    path = f"{store['id']}/files"
    first, second = api.file_ids
    await api.post(f"{path}/{first}", {"attributes": {"kind": "fruit", "size": 1.5}})
    changed = await api.post(f"{path}/{second}", {"attributes": {"kind": "law"}})
    assert changed["attributes"] == {"kind": "law"}
    request = {"query": "law", "filters": {"type": "eq", "key": "kind", "value": "fruit"}}
    found = (await api.post(f"{store['id']}/search", request))["data"]
    assert [(hit["file_id"], hit["attributes"]) for hit in found] == [(first, {"kind": "fruit", "size": 1.5})]
    assert (await api.post(f"{path}/{second}", {"attributes": None}))["attributes"] == {}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "file_id"),
        ({"file_id": "file-1"}, "file_id"),
        ({"file_id": "f", "attributes": {"a": [1]}}, "attributes"),
        ({"file_id": "f", "attributes": {str(number): 1 for number in range(17)}}, "attributes"),
        ({"file_id": "f", "attributes": {"k" * 65: 1}}, "attributes"),
        ({"file_id": "f", "attributes": {"k": "v" * 513}}, "attributes.k"),
        ({"file_id": "f", "attributes": {"k": 2**63}}, "attributes"),
        (
            {
                "file_id": "f",
                "chunking_strategy": {"type": "static", "static": {**SMALL["static"], "chunk_overlap_tokens": 51}},
            },
            "chunking_strategy.static.chunk_overlap_tokens",
        ),
    ],
)
async def test_a_bad_field_of_a_file_is_a_400_with_its_name(api: VectorApi, body: Any, param: str) -> None:
    store_id = (await api.create())["id"]
    assert (await api.refuse(f"{store_id}/files", body))[:2] == (400, param)
    assert (await api.get(f"{store_id}/files"))["data"] == []


async def test_files_of_an_unknown_store_are_a_404(api: VectorApi) -> None:
    file_id = await api.upload(FRUIT)
    for method, path, body in [
        ("POST", "files", {"file_id": file_id}),
        ("GET", "files", None),
        ("GET", f"files/{file_id}", None),
        ("DELETE", f"files/{file_id}", None),
        ("POST", "file_batches", {"file_ids": [file_id]}),
        ("GET", "file_batches/vsfb_1", None),
        ("POST", "search", {"query": "x"}),
    ]:
        assert (await api.refuse(f"vs_1/{path}", body, method))[:2] == (404, "vector_store_id")


@pytest.mark.shows("E5.3")
async def test_files_are_listed_page_by_page_and_by_status(api: VectorApi) -> None:
    store = await api.create_indexed("one", "two", png(8, 8), "four")
    path = f"{store['id']}/files"
    files = (await api.get(f"{path}?order=asc"))["data"]
    ids = [file["id"] for file in files]
    assert (await api.get(path))["first_id"] == ids[3]
    page = await api.get(f"{path}?order=asc&limit=2&after={ids[0]}")
    assert ([file["id"] for file in page["data"]], page["has_more"]) == (ids[1:3], True)
    page = await api.get(f"{path}?order=asc&limit=2&before={ids[3]}")
    assert ([file["id"] for file in page["data"]], page["has_more"]) == (ids[1:3], True)
    assert [file["id"] for file in (await api.get(f"{path}?filter=failed"))["data"]] == [api.file_ids[2]]
    assert len((await api.get(f"{path}?filter=completed"))["data"]) == 3
    assert (await api.refuse(f"{path}?filter=done", method="GET"))[:2] == (400, "filter")
    assert (await api.refuse(f"{path}?limit=101", method="GET"))[:2] == (400, "limit")


@pytest.mark.shows("E5.6")
async def test_a_file_that_cannot_be_read_has_failed_with_a_reason(api: VectorApi) -> None:
    store = await api.create_indexed(png(8, 8), b"", b"\x1f\x8b\0\0", FRUIT)
    assert store["status"] == "completed"
    assert (store["file_counts"]["failed"], store["file_counts"]["completed"]) == (3, 1)
    files = [await api.get(f"{store['id']}/files/{file_id}") for file_id in api.file_ids]
    codes = [file["last_error"] and file["last_error"]["code"] for file in files]
    assert codes == ["unsupported_file", "invalid_file", "unsupported_file", None]
    assert files[1]["last_error"]["message"] == "The file contains no text."
    assert (await api.get(f"{store['id']}/files/{files[0]['id']}/content"))["data"] == []


async def test_adding_a_file_again_indexes_it_with_its_new_strategy(api: VectorApi) -> None:
    text = "\n\n".join([f"Paragraph {number} says nothing new." for number in range(40)])
    store = await api.create_indexed(text)
    [file_id] = api.file_ids
    assert len((await api.get(f"{store['id']}/files/{file_id}/content"))["data"]) == 1
    await api.post(f"{store['id']}/files", {"file_id": file_id, "chunking_strategy": SMALL})
    while (await api.get(f"{store['id']}/files/{file_id}"))["status"] == "in_progress":
        pass
    content = (await api.get(f"{store['id']}/files/{file_id}/content"))["data"]
    assert len(content) > 3
    assert "".join([entry["text"] for entry in content]) == text
    assert (await api.get(store["id"]))["file_counts"]["total"] == 1


@pytest.mark.shows("E5.2")
async def test_the_files_of_a_batch_are_indexed_together(api: VectorApi) -> None:
    store_id = (await api.create())["id"]
    ids = [await api.upload(text) for text in (FRUIT, LAW, SEA)]
    batch = await api.post(
        f"{store_id}/file_batches", {"file_ids": [*ids, ids[0]], "attributes": {"a": 1}, "chunking_strategy": SMALL}
    )
    assert batch["id"].startswith("vsfb_")
    assert (batch["vector_store_id"], batch["file_counts"]["total"]) == (store_id, 3)
    await api.wait(store_id)
    path = f"{store_id}/file_batches/{batch['id']}"
    done = await api.get(path)
    assert (done["status"], done["file_counts"]["completed"]) == ("completed", 3)
    files = (await api.get(f"{path}/files?order=asc&limit=2"))["data"]
    assert [(file["attributes"], file["chunking_strategy"]) for file in files] == [({"a": 1}, SMALL)] * 2
    assert len((await api.get(f"{path}/files?filter=completed"))["data"]) == 3
    assert await api.post(f"{path}/cancel") == {**done, "status": "cancelled"}
    assert (await api.refuse(f"{store_id}/file_batches/vsfb_1", method="GET"))[:2] == (404, "batch_id")


async def test_a_batch_has_failed_if_all_of_its_files_have(api: VectorApi) -> None:
    store_id = (await api.create())["id"]
    batch = await api.post(f"{store_id}/file_batches", {"file_ids": [await api.upload(png(8, 8))]})
    await api.wait(store_id)
    assert (await api.get(f"{store_id}/file_batches/{batch['id']}"))["status"] == "failed"


async def test_a_batch_of_files_has_attributes_and_a_strategy_for_each(api: VectorApi) -> None:
    store_id = (await api.create())["id"]
    one, other = [await api.upload(text) for text in (FRUIT, LAW)]
    body = {
        "files": [{"file_id": one, "attributes": {"a": 1}}, {"file_id": other, "chunking_strategy": SMALL}],
        "attributes": {"ignored": True},
    }
    answer = await api.server.post(f"vector_stores/{store_id}/file_batches", body)
    assert answer.header(b"x-antiphon-ignored") == b"attributes"
    await api.wait(store_id)
    files = {file["id"]: file for file in (await api.get(f"{store_id}/files"))["data"]}
    assert (files[one]["attributes"], files[one]["chunking_strategy"]) == ({"a": 1}, STATIC)
    assert (files[other]["attributes"], files[other]["chunking_strategy"]) == ({}, SMALL)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "file_ids"),
        ({"file_ids": []}, "file_ids"),
        ({"file_ids": ["x"] * 2001}, "file_ids"),
        ({"file_ids": ["file-1"]}, "file_ids[0]"),
        ({"files": [{"file_id": "file-1"}]}, "files[0].file_id"),
        ({"files": [{"file_id": "x"}], "file_ids": ["x"]}, "files"),
        ({"files": [{"file_id": "x"}, {"file_id": "x"}]}, "files"),
        ({"files": [{"file_id": "x", "attributes": {"k": "v" * 513}}]}, "files[0].attributes.k"),
    ],
)
async def test_a_bad_batch_is_a_400_with_the_name_of_the_field(api: VectorApi, body: Any, param: str) -> None:
    store_id = (await api.create())["id"]
    assert (await api.refuse(f"{store_id}/file_batches", body))[:2] == (400, param)


async def test_the_number_of_files_of_a_store_is_limited() -> None:
    async with run_api(vector_store_max_files=1) as server:
        api = VectorApi(server)
        store = await api.create_indexed(FRUIT)
        status, _, message = await api.refuse(f"{store['id']}/files", {"file_id": await api.upload(LAW)})
        assert (status, "at most 1" in message) == (400, True)


async def test_clients_learn_when_to_look_again(api: VectorApi) -> None:
    store = await api.create_indexed(FRUIT)
    [file_id] = api.file_ids
    answer = await api.server.get(f"vector_stores/{store['id']}/files/{file_id}")
    assert 100 <= int(answer.header(b"openai-poll-after-ms") or b"0") <= 1000


@pytest.mark.shows("E5.9")
async def test_a_search_finds_the_best_passage_with_a_score(api: VectorApi) -> None:
    store = await api.create_indexed(FRUIT, LAW, SEA)
    page = await api.post(f"{store['id']}/search", {"query": "which law was passed?"})
    assert page["search_query"] == ["which law was passed?"]
    best = page["data"][0]
    assert (best["filename"], best["content"]) == ("1.txt", [{"type": "text", "text": LAW}])
    assert all(0 <= hit["score"] <= 1 for hit in page["data"])
    page = await api.post(f"{store['id']}/search", {"query": ["otters", "apples"], "max_num_results": 2})
    assert {hit["filename"] for hit in page["data"]} == {"0.txt", "2.txt"}
    options = {"ranker": "none", "score_threshold": 1.0}
    assert (await api.post(f"{store['id']}/search", {"query": "apples", "ranking_options": options}))["data"] == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "query"),
        ({"query": " "}, "query"),
        ({"query": []}, "query"),
        ({"query": "x" * 20_001}, "query"),
        ({"query": "x", "max_num_results": 51}, "max_num_results"),
        ({"query": "x", "filters": {"type": "like", "key": "a", "value": 1}}, "filters.type"),
        ({"query": "x", "ranking_options": {"ranker": "best"}}, "ranking_options.ranker"),
        ({"query": "x", "ranking_options": {"score_threshold": 1.1}}, "ranking_options.score_threshold"),
        ({"query": "x", "rewrite_query": "yes"}, "rewrite_query"),
    ],
)
async def test_a_bad_search_is_a_400_with_the_name_of_the_field(api: VectorApi, body: Any, param: str) -> None:
    store_id = (await api.create())["id"]
    assert (await api.refuse(f"{store_id}/search", body))[:2] == (400, param)


@pytest.mark.shows("E5.10")
async def test_a_chunk_longer_than_the_window_of_the_model_is_found_by_any_of_its_parts() -> None:
    engine = FakeEngine(FakeSettings(level="tokens", context=204))  # a token is a character
    filler = "Nothing of interest is written in this place. " * 12
    async with run_api(engine=engine) as server:
        api = VectorApi(server)
        store = await api.create_indexed(filler + "Otters swim in the sea.", filler)
        found = await api.post(
            f"{store['id']}/search", {"query": "Otters swim in the sea", "ranking_options": {"ranker": "none"}}
        )
        assert found["data"][0]["filename"] == "0.txt"
        file = await api.get(f"{store['id']}/files/{api.file_ids[0]}")
        assert file["usage_bytes"] >= len(filler) + 3 * 64 * 2  # several vectors


async def test_a_deleted_file_leaves_all_vector_stores(api: VectorApi) -> None:
    store = await api.create_indexed(FRUIT, LAW)
    other = await api.create(file_ids=api.file_ids)
    await api.wait(other["id"])
    file_id = api.file_ids[0]
    await api.server.delete(f"files/{file_id}")
    for store_id in (store["id"], other["id"]):
        assert (await api.get(store_id))["file_counts"]["total"] == 1
        found = await api.post(f"{store_id}/search", {"query": "apples"})
        assert file_id not in [hit["file_id"] for hit in found["data"]]
