"""A real model that was trained for tools calls a tool of an MCP server and answers with its output.

It is the GGUF file that TEST_GGUF names (`make test-engines GGUF=FILE`), Qwen2.5-Coder-1.5B-Instruct or better.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.oracles.responses import accumulate, check_event, check_response
from tests.real.test_required_calls import first_model_id, tool_client
from tests.tools.mcp.reference_server import run_reference_server

__all__ = ["tool_client"]

pytestmark = [pytest.mark.needs("node"), pytest.mark.real_engine, pytest.mark.timeout(3000)]

SUMS = [(2, 40), (17, 25), (30, 12), (100, 1), (7, 8)]
MIN_RIGHT = 4
BRIEF = "Call the tool once. When it has spoken, answer the user in one short sentence."


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with run_reference_server("streamableHttp", tmp_path_factory.mktemp("everything")) as url:
        yield url


@pytest.fixture
def fields(tool_client: OpenAI, everything: str) -> dict[str, Any]:
    tool = {"type": "mcp", "server_label": "sums", "server_url": everything, "allowed_tools": ["get-sum"]}
    return {
        "model": first_model_id(tool_client), "instructions": BRIEF, "input": sum_question(2, 40), "tools": [tool],
        "max_output_tokens": 200, "temperature": 0, "parallel_tool_calls": False,
    }  # fmt: skip


def sum_question(one: int, other: int) -> str:
    return f"What is {one} + {other}? Use the tool."


def is_right(response: Any, one: int = 2, other: int = 40) -> bool:
    """The tool was called with both numbers, and the sum is in the answer."""
    calls = [item for item in response.output if item.type == "mcp_call"]
    added = [call for call in calls if call.status == "completed" and sorted_arguments(call) == sorted([one, other])]
    sys.stdout.write(f"{[(call.arguments, call.output) for call in calls]} → {response.output_text!r}\n")
    return bool(added) and str(one + other) in response.output_text


def sorted_arguments(call: Any) -> list[Any]:
    return sorted(json.loads(call.arguments).values())


@pytest.mark.shows("E.1", "E.4")
def test_the_model_calls_the_sum_tool_and_answers_with_its_result(tool_client: OpenAI, fields: dict[str, Any]) -> None:
    found = 0
    for one, other in SUMS:
        response = tool_client.responses.create(**{**fields, "input": sum_question(one, other)}, tool_choice="required")
        check_response(json.loads(response.to_json()))
        found += is_right(response, one, other)
    assert found >= MIN_RIGHT, f"{found} of {len(SUMS)}"


@pytest.mark.shows("E.1", "E.6")
def test_the_model_calls_the_tool_by_itself_in_a_stream(tool_client: OpenAI, fields: dict[str, Any]) -> None:
    """Only one call is allowed, since a small model that has a tool calls it repeatedly. The text of the answer is not
    checked.
    """
    with tool_client.responses.create(**{**fields, "instructions": None}, max_tool_calls=1, stream=True) as stream:
        events = [event.to_dict(mode="json") for event in stream]
    for event in events:
        check_event(event)
    calls = [item for item in accumulate(events).output if item.type == "mcp_call"]
    assert [(call.status, sorted_arguments(call)) for call in calls] == [("completed", [2, 40])]
    assert len([event for event in events if event["type"] == "response.mcp_call_arguments.delta"]) > 1


@pytest.mark.shows("E.9")
def test_the_model_continues_after_an_approval_and_after_a_denial(tool_client: OpenAI, fields: dict[str, Any]) -> None:
    fields["tools"] = [{**fields["tools"][0], "require_approval": "always"}]
    first = tool_client.responses.create(tool_choice="required", **fields)
    request = first.output[-1]
    assert request.type == "mcp_approval_request"
    for approve in (False, True):
        answer = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve}
        second = tool_client.responses.create(**{**fields, "input": [answer]}, previous_response_id=first.id)
        check_response(json.loads(second.to_json()))
        assert is_right(second) is approve
