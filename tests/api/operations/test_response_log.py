"""Tests /v1/antiphon/responses: a tenant's responses without their contents.

Covers `protocol/types/operations/activity.py`, `transport/operating/activity.py`,
`service/operations/response_log.py` and `service/persistence/response_summary.py`.
"""

from typing import Any

import msgspec
import pytest

from antiphon.ids import new_id
from antiphon.protocol.types.operations.activity import SummaryList
from tests.api.app import ApiServer, Client, run_api

pytestmark = pytest.mark.anyio

TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": False}
_pages = msgspec.json.Decoder(SummaryList)


async def list_summaries(server: ApiServer, query: str = "") -> list[dict[str, Any]]:
    answer = await server.get(f"antiphon/responses{query}")
    assert answer.status == 200, answer.body
    _pages.decode(answer.body)
    return list(answer.json()["data"])


async def test_a_summary_has_facts_and_no_contents() -> None:
    async with run_api() as server:
        created = await server.create(input="SECRET", tools=[TOOL], tool_choice="required", metadata={"a": "SECRET"})
        client = Client(server.app, input="SECRET", previous_response_id=created["id"])
        await client.request
        streamed, first = await list_summaries(server)
        assert "SECRET" not in str([streamed, first])
        assert (first["status"], first["model"], first["items"]) == ("completed", "fake", {"function_call": 1})
        assert first["usage"] == {
            "input_tokens": created["usage"]["input_tokens"],
            "cached_tokens": created["usage"]["input_tokens_details"]["cached_tokens"],
            "output_tokens": created["usage"]["output_tokens"],
            "reasoning_tokens": 0,
        }
        assert first["duration"] == pytest.approx(first["ended_at"] - first["created_at"], abs=0.001)
        assert (streamed["previous_response_id"], streamed["items"]) == (created["id"], {"message": 1})
        assert 0 <= streamed["ttft"] <= streamed["duration"]
        assert (await server.get(f"antiphon/responses/{created['id']}")).json() == first


async def test_an_incomplete_response_has_its_reason() -> None:
    async with run_api() as server:
        await server.create(max_output_tokens=16, input="word " * 50)
        [summary] = await list_summaries(server, "?status=incomplete&model=fake")
        assert summary["error"] == "max_output_tokens"
        assert await list_summaries(server, "?status=completed&status[]=failed") == []


async def test_a_background_response_is_found_by_its_kind() -> None:
    async with run_api() as server:
        created = await server.create(background=True)
        found = await list_summaries(server, "?background=true")
        assert [summary["id"] for summary in found] == [created["id"]]


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=101", "order=up", "after=x", f"after={new_id('msg')}", f"after={new_id('resp')}",
     "status=gone", "background=perhaps", "model=a&model=b"],
)  # fmt: skip
async def test_an_invalid_query_is_rejected_with_its_parameter(query: str) -> None:
    async with run_api() as server:
        answer = await server.get(f"antiphon/responses?{query}")
        assert (answer.status, (answer.error["param"] or "").partition("[")[0]) == (400, query.partition("=")[0])


async def test_an_unknown_response_is_not_found() -> None:
    async with run_api() as server:
        for name in (new_id("resp"), "x", "%00"):
            assert (await server.get(f"antiphon/responses/{name}")).status == 404


async def test_without_a_store_there_is_no_list() -> None:
    async with run_api(disable_store=True) as server:
        for path in ("antiphon/responses", f"antiphon/responses/{new_id('resp')}"):
            answer = await server.get(path)
            assert answer.status == 404
            assert "--disable-store" in answer.error["message"]
