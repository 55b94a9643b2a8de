"""Tests GET /v1/responses and GET /v1/conversations, which list the tenant's own entries page by page."""

from typing import Any

import pytest

from antiphon.ids import new_id
from antiphon.service.persistence import stored_responses
from tests.api.app import ApiServer, run_api
from tests.oracles.responses import check_response

pytestmark = pytest.mark.anyio


async def list_all_pages(server: ApiServer, path: str, limit: int, order: str) -> list[Any]:
    found: list[Any] = []
    after = ""
    while True:
        page = (await server.get(f"{path}?limit={limit}&order={order}{after}")).json()
        assert page["object"] == "list"
        assert len(page["data"]) == limit or not page["has_more"]
        assert [page["first_id"], page["last_id"]] == [page["data"][at]["id"] for at in (0, -1)]
        found += page["data"]
        if not page["has_more"]:
            return found
        after = f"&after={page['last_id']}"


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_pages_list_all_entries_in_order(limit: int) -> None:
    async with run_api() as server:
        responses = [await server.create() for _ in range(5)]
        conversations = [await server.post_ok("conversations", {"metadata": {"n": str(n)}}) for n in range(5)]
        for order in ("asc", "desc"):
            for path, created in (("responses", responses), ("conversations", conversations)):
                expected = sorted(created, key=lambda entry: str(entry["id"]), reverse=order == "desc")
                assert await list_all_pages(server, path, limit, order) == expected
        assert (await server.get("responses")).json()["data"] == sorted(responses, key=lambda entry: entry["id"])[::-1]


async def test_a_listed_response_equals_the_retrieved_one() -> None:
    async with run_api() as server:
        response = await server.create(reasoning={"effort": "low"}, include=["reasoning.encrypted_content"])
        [listed] = (await server.get("responses")).json()["data"]
        check_response(listed)
        assert listed == (await server.get(f"responses/{response['id']}")).json()


async def test_unstored_and_deleted_entries_are_not_listed() -> None:
    async with run_api() as server:
        await server.create(store=False)
        response = await server.create()
        await server.delete(f"responses/{response['id']}")
        conversation = await server.post_ok("conversations", {})
        await server.delete(f"conversations/{conversation['id']}")
        for path in ("responses", "conversations"):
            empty = (await server.get(path)).json()
            assert empty == {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=101", "limit=x", "order=up", "after=", "after=x", f"after={new_id('msg')}",
     f"after={new_id('resp')}", f"after={new_id('conv')}", "after=%00", "limit=1&limit=2"],
)  # fmt: skip
async def test_an_invalid_query_is_rejected_with_its_parameter(query: str) -> None:
    async with run_api() as server:
        await server.create()
        for path in ("responses", "conversations"):
            answer = await server.get(f"{path}?{query}")
            assert (answer.status, answer.error["param"]) == (400, query.partition("=")[0])


async def test_without_a_store_lists_are_not_found() -> None:
    async with run_api(disable_store=True) as server:
        for path in ("responses", "conversations"):
            answer = await server.get(path)
            assert answer.status == 404
            assert "--disable-store" in answer.error["message"]


async def test_a_page_is_limited_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_responses, "_MAX_PAGE_BYTES", 10_000)
    async with run_api() as server:
        for _ in range(3):
            await server.create(input="x" * 8000)
        seen, after = 0, ""
        for _ in range(3):
            page = (await server.get(f"responses?limit=100{after}")).json()
            assert len(page["data"]) == 1
            seen, after = seen + 1, f"&after={page['last_id']}"
            assert page["has_more"] is (seen < 3)
