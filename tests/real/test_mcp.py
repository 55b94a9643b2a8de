"""A real model that was made for tools calls one of an MCP server, and answers with what it gave.

It is the GGUF file that TEST_GGUF names (`make test-engines GGUF=FILE`), Qwen2.5-Coder-1.5B-Instruct or better.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.oracles.responses import accumulate, check_event, check_response
from tests.real.test_required_calls import capable, model_of
from tests.tools.mcp.reference_server import serving

__all__ = ["capable"]

pytestmark = [pytest.mark.needs("node"), pytest.mark.real_engine, pytest.mark.timeout(3000)]

SUMS = [(2, 40), (17, 25), (30, 12), (100, 1), (7, 8)]
LEAST = 4
BRIEF = "Call the tool once. When it has spoken, answer the user in one short sentence."


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving("streamableHttp", tmp_path_factory.mktemp("everything")) as url:
        yield url


@pytest.fixture
def wanted(capable: OpenAI, everything: str) -> dict[str, Any]:
    tool = {"type": "mcp", "server_label": "sums", "server_url": everything, "allowed_tools": ["get-sum"]}
    return {
        "model": model_of(capable), "instructions": BRIEF, "input": asked(2, 40), "tools": [tool],
        "max_output_tokens": 200, "temperature": 0, "parallel_tool_calls": False,
    }  # fmt: skip


def asked(one: int, other: int) -> str:
    return f"What is {one} + {other}? Use the tool."


def right(response: Any, one: int = 2, other: int = 40) -> bool:
    """It called with both numbers, and the sum is in the answer."""
    calls = [item for item in response.output if item.type == "mcp_call"]
    added = [call for call in calls if call.status == "completed" and given(call) == sorted([one, other])]
    sys.stdout.write(f"{[(call.arguments, call.output) for call in calls]} → {response.output_text!r}\n")
    return bool(added) and str(one + other) in response.output_text


def given(call: Any) -> list[Any]:
    return sorted(json.loads(call.arguments).values())


@pytest.mark.shows("E.1", "E.4")
def test_a_sum_is_asked_of_a_server_and_answered(capable: OpenAI, wanted: dict[str, Any]) -> None:
    found = 0
    for one, other in SUMS:
        response = capable.responses.create(**{**wanted, "input": asked(one, other)}, tool_choice="required")
        check_response(json.loads(response.to_json()))
        found += right(response, one, other)
    assert found >= LEAST, f"{found} of {len(SUMS)}"


@pytest.mark.shows("E.1", "E.6")
def test_it_calls_by_itself_and_a_stream_tells_it(capable: OpenAI, wanted: dict[str, Any]) -> None:
    """Once, since a small model that has a tool calls it again and again. What it answers is not judged."""
    with capable.responses.create(**{**wanted, "instructions": None}, max_tool_calls=1, stream=True) as stream:
        events = [event.to_dict(mode="json") for event in stream]
    for event in events:
        check_event(event)
    calls = [item for item in accumulate(events).output if item.type == "mcp_call"]
    assert [(call.status, given(call)) for call in calls] == [("completed", [2, 40])]
    assert len([event for event in events if event["type"] == "response.mcp_call_arguments.delta"]) > 1


@pytest.mark.shows("E.9")
def test_it_goes_on_after_an_approval_and_after_a_refusal(capable: OpenAI, wanted: dict[str, Any]) -> None:
    wanted["tools"] = [{**wanted["tools"][0], "require_approval": "always"}]
    first = capable.responses.create(tool_choice="required", **wanted)
    request = first.output[-1]
    assert request.type == "mcp_approval_request"
    for approve in (False, True):
        answer = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve}
        then = capable.responses.create(**{**wanted, "input": [answer]}, previous_response_id=first.id)
        check_response(json.loads(then.to_json()))
        assert right(then) is approve
