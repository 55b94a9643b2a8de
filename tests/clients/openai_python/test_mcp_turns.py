"""Client control over the MCP tool loop with the `openai` package: tool selection, limits, continuation of earlier
responses, and approvals.
"""

import json
from typing import Any

import pytest
from openai import BadRequestError, OpenAI
from openai.types.responses import Response

from tests.clients.agent_server import MAX_TOOL_TURNS
from tests.clients.tool_definitions import WEATHER
from tests.oracles.responses import accumulate, check_conversation_item, check_event, check_response

pytestmark = pytest.mark.needs("node")

HTTP: Any = {"type": "mcp", "server_label": "http"}
SUM = "The sum of 2 and 40 is 42."


def run_play(client: OpenAI, play: str, **overrides: Any) -> Response:
    """Run a play streamed and as JSON, check that both are equal, and return the JSON response."""
    fields: Any = {"model": "fake", "input": f"play {play}.", "tools": [HTTP], **overrides}
    with client.responses.create(stream=True, **fields) as stream:
        events = [event.to_dict(mode="json") for event in stream]
    for event in events:
        check_event(event)
    response: Response = client.responses.create(**fields)
    check_response(json.loads(response.to_json()))
    assert summarise(accumulate(events)) == summarise(response)
    return response


def summarise(response: Response) -> list[tuple[Any, ...]]:
    """Return the status of a response and its items without their ids."""
    fields = ("type", "status", "server_label", "name", "arguments", "output", "content")
    items = [tuple(str(getattr(item, field, None)) for field in fields) for item in response.output]
    return [(response.status, response.incomplete_details and response.incomplete_details.reason), *items]


def item_types(response: Response) -> list[str]:
    return [item.type for item in response.output]


def called_tools(response: Response) -> list[str]:
    """Return the called tools as `server label/tool name`."""
    return [f"{item.server_label}/{item.name}" for item in response.output if item.type == "mcp_call"]


def call_outputs(response: Response) -> list[str | None]:
    return [item.output for item in response.output if item.type == "mcp_call"]


# ---- tool selection


@pytest.mark.parametrize(
    ("choice", "first"),
    [
        ("auto", "http/echo"),
        ("required", "http/echo"),
        ({"type": "mcp", "server_label": "http"}, "http/echo"),
        ({"type": "mcp", "server_label": "http", "name": "get-sum"}, "http/get-sum"),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "mcp", "server_label": "http", "name": "get-structured-content"}],
            },
            "http/get-structured-content",
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "mcp", "server_label": "http", "name": "get-resource-links"}],
            },
            "http/get-resource-links",
        ),
    ],
    ids=["auto", "required", "server", "tool", "allowed, required", "allowed, auto"],
)
@pytest.mark.shows("E.1")
def test_the_fake_model_calls_the_first_tool_that_tool_choice_allows_and_answers(
    agent_client: OpenAI, choice: Any, first: str
) -> None:
    response = agent_client.responses.create(model="fake", input="Go.", tools=[HTTP], tool_choice=choice)
    check_response(json.loads(response.to_json()))
    assert called_tools(response) == [first]
    assert response.output_text.startswith("The tool said: ")
    assert response.status == "completed"


def test_tool_choice_none_calls_no_tool(agent_client: OpenAI) -> None:
    response = run_play(agent_client, "nothing", tool_choice="none")
    assert called_tools(response) == []
    assert response.output_text == "You said: play nothing."


def test_a_tool_choice_of_an_unknown_server_or_tool_is_rejected(agent_client: OpenAI) -> None:
    for choice in ({"type": "mcp", "server_label": "other"}, {"type": "mcp", "server_label": "http", "name": "nope"}):
        with pytest.raises(BadRequestError) as refused:
            agent_client.responses.create(model="fake", input="Go.", tools=[HTTP], tool_choice=choice)  # type: ignore[call-overload]  # a union of both dict types
        assert refused.value.param == "tool_choice"
    with pytest.raises(BadRequestError, match="'nobody'") as unknown:
        agent_client.responses.create(model="fake", input="Go.", tools=[{"type": "mcp", "server_label": "nobody"}])
    assert (unknown.value.param or "").startswith("tools[0]")


@pytest.mark.parametrize(
    ("allowed", "listed"),
    [
        (["get-sum", "echo"], {"echo", "get-sum"}),
        ({"tool_names": ["get-sum"]}, {"get-sum"}),
        (["get-sum", "nobody-has-this"], {"get-sum"}),
    ],
)
@pytest.mark.shows("E.7")
def test_only_allowed_tools_are_listed_and_called(agent_client: OpenAI, allowed: Any, listed: set[str]) -> None:
    response = run_play(agent_client, "nothing", tools=[{**HTTP, "allowed_tools": allowed}])
    item = response.output[0]
    assert item.type == "mcp_list_tools"
    assert {tool.name for tool in item.tools} == listed
    assert called_tools(response) == ["http/echo" if "echo" in listed else "http/get-sum"]


@pytest.mark.shows("E.7")
def test_allowed_tools_can_be_limited_to_read_only_tools(agent_client: OpenAI) -> None:
    tools: Any = [{**HTTP, "allowed_tools": {"read_only": True}}]
    item = agent_client.responses.create(model="fake", input="Go.", tools=tools).output[0]
    assert item.type == "mcp_list_tools"
    hints: Any = [tool.annotations for tool in item.tools]
    assert hints
    assert all(hint["readOnlyHint"] is True for hint in hints)
    assert "toggle-simulated-logging" not in {tool.name for tool in item.tools}


def test_tools_with_the_same_name_on_two_servers_stay_distinct(
    agent_client: OpenAI, everything: str, everything_by_sse: str
) -> None:
    tools: Any = [
        {"type": "mcp", "server_label": "one", "server_url": everything},
        {"type": "mcp", "server_label": "two", "server_url": everything_by_sse},
    ]
    response = run_play(agent_client, "twins", tools=tools)
    assert item_types(response)[:2] == ["mcp_list_tools", "mcp_list_tools"]
    assert called_tools(response) == ["one/echo", "two/echo"]
    assert call_outputs(response) == ["Echo: first", "Echo: second"]


# ---- limits


@pytest.mark.shows("E.3")
def test_calls_of_one_turn_have_items_in_the_order_of_the_calls(agent_client: OpenAI) -> None:
    response = run_play(agent_client, "three")
    assert call_outputs(response) == [SUM, "Echo: hallo", "The sum of 1 and 1 is 2."]
    assert item_types(response)[-1] == "message"


@pytest.mark.shows("E.2")
def test_calls_over_max_tool_calls_are_not_run_and_the_model_is_informed(agent_client: OpenAI) -> None:
    response = run_play(agent_client, "three", max_tool_calls=1)
    assert call_outputs(response) == [SUM, None, None]
    assert response.max_tool_calls == 1
    assert "max_tool_calls" in response.output_text
    assert response.status == "completed"


@pytest.mark.shows("E.2")
def test_an_endless_tool_loop_ends_with_an_answer_at_the_turn_limit(agent_client: OpenAI, everything: str) -> None:
    tools: Any = [{"type": "mcp", "server_label": "everything", "server_url": everything}]
    response = run_play(agent_client, "endless", tools=tools)
    assert call_outputs(response) == [SUM] * MAX_TOOL_TURNS
    assert (response.status, response.output_text) == ("completed", f"The tool said: {SUM}")
    fewer = run_play(agent_client, "endless", tools=tools, max_tool_calls=2)
    assert (call_outputs(fewer), fewer.status) == ([SUM] * 2, "completed")


@pytest.mark.shows("E.2")
def test_max_output_tokens_limits_all_turns_together(agent_client: OpenAI, everything: str) -> None:
    tools: Any = [{"type": "mcp", "server_label": "everything", "server_url": everything}]
    response = run_play(agent_client, "endless", tools=tools, max_output_tokens=23)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert response.usage.output_tokens <= 23


def test_parallel_tool_calls_false_runs_one_call(agent_client: OpenAI) -> None:
    assert call_outputs(run_play(agent_client, "three", parallel_tool_calls=False)) == [SUM]


def test_usage_adds_up_over_the_turns(agent_client: OpenAI) -> None:
    usage = run_play(agent_client, "sum").usage
    assert usage is not None
    input_details: Any = usage.input_tokens_details.to_dict()
    output_details: Any = usage.output_tokens_details.to_dict()
    assert len(input_details["input_tokens_per_turn"]) == len(output_details["output_tokens_per_turn"]) == 2
    assert sum(input_details["input_tokens_per_turn"]) == usage.input_tokens
    assert sum(input_details["cached_tokens_per_turn"]) == usage.input_tokens_details.cached_tokens
    assert sum(output_details["output_tokens_per_turn"]) == usage.output_tokens
    assert output_details["tool_output_tokens_per_turn"][0] == 0
    assert sum(output_details["tool_output_tokens_per_turn"]) == output_details["tool_output_tokens"] > 0


# ---- server tools together with client tools


@pytest.mark.shows("E.1")
def test_server_tools_run_and_the_client_receives_its_own_call(agent_client: OpenAI) -> None:
    first = run_play(agent_client, "mixed", tools=[HTTP, WEATHER])
    assert item_types(first) == ["mcp_list_tools", "mcp_call", "function_call"]
    assert (first.status, call_outputs(first)) == ("completed", [SUM])
    call = first.output[-1]
    assert call.type == "function_call"
    tool_output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    second = agent_client.responses.create(
        model="fake", input=[tool_output], previous_response_id=first.id, tools=[HTTP, WEATHER]
    )
    assert item_types(second) == ["message"]
    assert "sunny" in second.output_text


# ---- continuation


@pytest.mark.parametrize("continuation", ["previous_response_id", "conversation", "items"])
@pytest.mark.shows("E.6")
def test_a_tool_list_is_reused_from_the_history(agent_client: OpenAI, continuation: str) -> None:
    start: Any = {}
    if continuation == "conversation":
        start = {"conversation": agent_client.conversations.create().id}
    first = agent_client.responses.create(model="fake", input="play sum.", tools=[HTTP], **start)
    assert item_types(first) == ["mcp_list_tools", "mcp_call", "message"]
    again: Any = {"conversation": start, "previous_response_id": {"previous_response_id": first.id}}.get(
        continuation, {}
    )
    before: Any = [item.to_dict(mode="json") for item in first.output] if continuation == "items" else []
    second = agent_client.responses.create(
        model="fake", input=[*before, {"role": "user", "content": "play echo."}], tools=[HTTP], **(again or start)
    )
    check_response(json.loads(second.to_json()))
    assert item_types(second) == ["mcp_call", "message"]
    assert call_outputs(second) == ["Echo: hallo"]


def test_only_a_newly_added_server_is_listed(agent_client: OpenAI) -> None:
    first = agent_client.responses.create(model="fake", input="play sum.", tools=[HTTP])
    both: Any = [HTTP, {"type": "mcp", "server_label": "stdio"}]
    second = agent_client.responses.create(model="fake", input="Go.", previous_response_id=first.id, tools=both)
    assert item_types(second)[0] == "mcp_list_tools"
    assert [item.server_label for item in second.output if item.type == "mcp_list_tools"] == ["stdio"]


def test_a_conversation_stores_the_output_items(agent_client: OpenAI) -> None:
    conversation = agent_client.conversations.create()
    response = agent_client.responses.create(
        model="fake", input="play three.", tools=[HTTP], conversation=conversation.id
    )
    items = list(agent_client.conversations.items.list(conversation.id, order="asc"))
    for item in items:
        check_conversation_item(item.to_dict(mode="json"))
    assert [item.id for item in items[1:]] == [item.id for item in response.output]


def test_the_tokens_of_a_request_with_tools_can_be_counted(agent_client: OpenAI) -> None:
    first = agent_client.responses.create(model="fake", input="play sum.", tools=[HTTP])
    without_tools = agent_client.responses.input_tokens.count(model="fake", input="Go.", previous_response_id=first.id)
    with_tools = agent_client.responses.input_tokens.count(
        model="fake", input="Go.", previous_response_id=first.id, tools=[HTTP]
    )
    assert with_tools.input_tokens > without_tools.input_tokens


# ---- approvals


@pytest.mark.shows("E.9")
def test_an_approval_runs_the_call_and_a_refusal_does_not(agent_client: OpenAI) -> None:
    approval_tool: Any = {**HTTP, "require_approval": "always"}
    for approve in (True, False):
        first = run_play(agent_client, "sum", tools=[approval_tool])
        request = first.output[-1]
        assert request.type == "mcp_approval_request"
        assert (first.status, json.loads(request.arguments)) == ("completed", {"a": 2, "b": 40})
        answer: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve}
        second = agent_client.responses.create(
            model="fake", input=[answer], previous_response_id=first.id, tools=[approval_tool]
        )
        check_response(json.loads(second.to_json()))
        assert call_outputs(second) == ([SUM] if approve else [])
        assert second.output_text == f"The tool said: {SUM if approve else '[The user did not allow this call.]'}"


@pytest.mark.shows("E.9")
def test_an_approval_may_use_an_item_reference_to_its_request(agent_client: OpenAI) -> None:
    """The AI SDK does this, and sends no tool list back."""
    approval_tool: Any = {**HTTP, "require_approval": "always"}
    question: Any = {"role": "user", "content": "play sum."}
    request = agent_client.responses.create(model="fake", input=[question], tools=[approval_tool]).output[-1]
    reference: Any = {"type": "item_reference", "id": request.id}
    answer: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    second = agent_client.responses.create(model="fake", input=[question, reference, answer], tools=[approval_tool])
    assert item_types(second) == ["mcp_list_tools", "mcp_call", "message"]
    assert call_outputs(second) == [SUM]


@pytest.mark.shows("E.9")
def test_only_named_tools_require_approval(agent_client: OpenAI) -> None:
    approval_tool: Any = {**HTTP, "require_approval": {"always": {"tool_names": ["echo"]}}}
    assert item_types(run_play(agent_client, "sum", tools=[approval_tool])) == ["mcp_list_tools", "mcp_call", "message"]
    assert item_types(run_play(agent_client, "echo", tools=[approval_tool])) == [
        "mcp_list_tools",
        "mcp_approval_request",
    ]
    both = run_play(agent_client, "three", tools=[approval_tool])
    assert sorted(item_types(both)) == ["mcp_approval_request", "mcp_call", "mcp_call", "mcp_list_tools"]


@pytest.mark.shows("E.10")
def test_the_effective_approval_setting_is_echoed(agent_client: OpenAI) -> None:
    (tool,) = run_play(agent_client, "nothing").tools
    assert tool.type == "mcp"
    assert tool.require_approval == "never"
