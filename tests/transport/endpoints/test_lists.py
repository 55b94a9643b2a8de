"""GET /v1/responses and GET /v1/conversations: a tenant's own, page by page."""

from typing import Any

import pytest

from antiphon.ids import new_id
from antiphon.service.persistence import stored_responses
from tests.api.app import Api, api
from tests.oracles.responses import check_response

pytestmark = pytest.mark.anyio


async def pages(server: Api, where: str, limit: int, order: str) -> list[Any]:
    found: list[Any] = []
    after = ""
    while True:
        page = (await server.get(f"{where}?limit={limit}&order={order}{after}")).json()
        assert page["object"] == "list"
        assert len(page["data"]) == limit or not page["has_more"]
        assert [page["first_id"], page["last_id"]] == [page["data"][at]["id"] for at in (0, -1)]
        found += page["data"]
        if not page["has_more"]:
            return found
        after = f"&after={page['last_id']}"


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_pages_are_whole_newest_first(limit: int) -> None:
    async with api() as server:
        made = [await server.create() for _ in range(5)]
        talks = [await server.made("conversations", {"metadata": {"n": str(n)}}) for n in range(5)]
        for order in ("asc", "desc"):
            for where, all_made in (("responses", made), ("conversations", talks)):
                expected = sorted(all_made, key=lambda one: str(one["id"]), reverse=order == "desc")
                assert await pages(server, where, limit, order) == expected
        assert (await server.get("responses")).json()["data"] == sorted(made, key=lambda one: one["id"])[::-1]


async def test_a_listed_response_is_what_get_gives() -> None:
    async with api() as server:
        made = await server.create(reasoning={"effort": "low"}, include=["reasoning.encrypted_content"])
        [listed] = (await server.get("responses")).json()["data"]
        check_response(listed)
        assert listed == (await server.get(f"responses/{made['id']}")).json()


async def test_what_is_not_stored_or_deleted_is_not_listed() -> None:
    async with api() as server:
        await server.create(store=False)
        gone = await server.create()
        await server.delete(f"responses/{gone['id']}")
        talk = await server.made("conversations", {})
        await server.delete(f"conversations/{talk['id']}")
        for where in ("responses", "conversations"):
            empty = (await server.get(where)).json()
            assert empty == {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=101", "limit=x", "order=up", "after=", "after=x", f"after={new_id('msg')}",
     f"after={new_id('resp')}", f"after={new_id('conv')}", "after=%00", "limit=1&limit=2"],
)  # fmt: skip
async def test_what_does_not_fit_is_named(query: str) -> None:
    async with api() as server:
        await server.create()
        for where in ("responses", "conversations"):
            answer = await server.get(f"{where}?{query}")
            assert (answer.status, answer.error["param"]) == (400, query.partition("=")[0])


async def test_without_a_store_there_is_no_list() -> None:
    async with api(disable_store=True) as server:
        for where in ("responses", "conversations"):
            answer = await server.get(where)
            assert answer.status == 404
            assert "--disable-store" in answer.error["message"]


async def test_a_page_of_long_responses_is_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_responses, "_PAGE_BYTES", 10_000)
    async with api() as server:
        for _ in range(3):
            await server.create(input="x" * 8000)
        seen, after = 0, ""
        for _ in range(3):
            page = (await server.get(f"responses?limit=100{after}")).json()
            assert len(page["data"]) == 1
            seen, after = seen + 1, f"&after={page['last_id']}"
            assert page["has_more"] is (seen < 3)
