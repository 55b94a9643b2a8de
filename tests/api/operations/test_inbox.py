"""Tests /v1/antiphon/approvals and /v1/antiphon/tool_calls: what waits for a client.

Covers `service/operations/inbox.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

from antiphon.ids import ItemIds, new_id
from antiphon.protocol.types.operations.activity import ApprovalList, WaitingList
from antiphon.service.operations import inbox
from tests.api.app import ApiServer, Client, run_api
from tests.support.asgi_client import DEADLINE
from tests.tools.mcp.sum_server import SumServer, run_sum_server

pytestmark = pytest.mark.anyio

TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": False}


@pytest.fixture(scope="module")
def sums() -> Iterator[SumServer]:
    with run_sum_server() as sums:
        yield sums


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with run_api() as server:
        yield server


def build_tool(sums: SumServer) -> dict[str, Any]:
    return {"type": "mcp", "server_label": "sums", "server_url": sums.url, "require_approval": "always"}


async def list_approvals(server: ApiServer, query: str = "") -> ApprovalList:
    answer = await server.get(f"antiphon/approvals{query}")
    assert answer.status == 200, answer.body
    return msgspec.json.decode(answer.body, type=ApprovalList)


async def list_waiting(server: ApiServer, query: str = "") -> WaitingList:
    answer = await server.get(f"antiphon/tool_calls{query}")
    assert answer.status == 200, answer.body
    return msgspec.json.decode(answer.body, type=WaitingList)


@pytest.mark.parametrize("approve", [True, False])
async def test_an_approval_is_listed_until_it_is_answered(server: ApiServer, sums: SumServer, approve: bool) -> None:
    response = await server.create(tools=[build_tool(sums)])
    await server.create(tools=[build_tool(sums)], store=False)  # its client has the items
    [approval] = (await list_approvals(server)).data
    assert (approval.id, approval.response_id, approval.model) == (response["output"][-1]["id"], response["id"], "fake")
    assert (approval.item.server_label, approval.item.name, approval.item.arguments) == (
        "sums", "add", response["output"][-1]["arguments"],
    )  # fmt: skip
    answer = {"type": "mcp_approval_response", "approval_request_id": approval.id, "approve": approve}
    await server.create(input=[answer], previous_response_id=response["id"], tools=[build_tool(sums)])
    assert (await list_approvals(server)).data == []


async def test_a_denied_call_may_still_be_approved_in_another_branch(server: ApiServer, sums: SumServer) -> None:
    response = await server.create(tools=[build_tool(sums)])
    for approve in (False, True):
        answer = {
            "type": "mcp_approval_response",
            "approval_request_id": response["output"][-1]["id"],
            "approve": approve,
        }
        branch = await server.create(input=[answer], previous_response_id=response["id"], tools=[build_tool(sums)])
        assert ("mcp_call" in [item["type"] for item in branch["output"]]) == approve


@pytest.mark.parametrize("max_bytes", [0, 1 << 20])
async def test_pages_of_approvals_neither_skip_nor_repeat(
    server: ApiServer, sums: SumServer, monkeypatch: pytest.MonkeyPatch, max_bytes: int
) -> None:
    monkeypatch.setattr(inbox, "_MAX_PAGE_BYTES", max_bytes)
    responses = [await server.create(tools=[build_tool(sums)]) for _ in range(4)]
    await server.delete(f"responses/{responses[1]['id']}")
    expected = sorted([each["output"][-1]["id"] for each in responses if each is not responses[1]], reverse=True)
    found: list[str] = []
    after = ""
    while True:
        page = await list_approvals(server, f"?limit=2{after}")
        found += [approval.id for approval in page.data]
        if not page.has_more:
            break
        after = f"&after={page.last_id}"
    assert found == expected


async def test_a_waiting_background_response_is_listed_with_its_calls(server: ApiServer) -> None:
    response = await server.create(
        tools=[TOOL], tool_choice="required", background=True, stream=False, wait_for_tool_outputs=True
    )
    waiting = await wait_for_waiting(server)
    assert (waiting.id, waiting.background, waiting.model) == (response["id"], True, "fake")
    [call] = waiting.calls
    assert call.item is not None
    assert (call.item.call_id, call.item.name) == (call.call_id, "weather")
    output = {"tool_call_id": call.call_id, "output": "sunny"}
    await server.post_ok(f"responses/{response['id']}/tool_outputs", output)
    assert (await list_waiting(server)).data == []


async def test_a_waiting_stream_is_listed_with_the_ids_of_its_calls(server: ApiServer) -> None:
    client = Client(server.app, tools=[TOOL], tool_choice="required", wait_for_tool_outputs=True)
    waiting = await wait_for_waiting(server)
    assert not waiting.background
    [call] = waiting.calls
    await server.post_ok(f"responses/{waiting.id}/tool_outputs", {"tool_call_id": call.call_id, "output": "sunny"})
    async with asyncio.timeout(DEADLINE):
        await client.request


async def wait_for_waiting(server: ApiServer) -> Any:
    async with asyncio.timeout(DEADLINE):
        while True:
            if found := (await list_waiting(server)).data:
                return found[0]


@pytest.mark.parametrize(
    ("path", "cursor"), [("approvals", ItemIds(new_id("resp"))("mcpr")), ("tool_calls", new_id("resp"))]
)
async def test_invalid_queries_are_rejected_with_their_parameter(server: ApiServer, path: str, cursor: str) -> None:
    for query in ("limit=0", "order=up", "after=x", f"after={cursor}", "after=%00"):
        answer = await server.get(f"antiphon/{path}?{query}")
        assert (answer.status, answer.error["param"]) == (400, query.partition("=")[0])


async def test_without_a_store_nothing_waits() -> None:
    async with run_api(disable_store=True) as server:
        for path in ("approvals", "tool_calls"):
            assert (await server.get(f"antiphon/{path}")).status == 404
