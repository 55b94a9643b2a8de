"""What a client can say about a loop: which tools, how many calls, what goes on where another response ended."""

import json
from typing import Any

import pytest
from openai import BadRequestError, OpenAI
from openai.types.responses import Response

from tests.clients.agent_server import TURNS
from tests.clients.tool_definitions import WEATHER
from tests.oracles.responses import accumulate, check_conversation_item, check_event, check_response

pytestmark = pytest.mark.needs("node")

HTTP: Any = {"type": "mcp", "server_label": "http"}
SUM = "The sum of 2 and 40 is 42."


def played(client: OpenAI, play: str, **more: Any) -> Response:
    """What is streamed to its end is what comes in one piece."""
    wanted: Any = {"model": "fake", "input": f"play {play}.", "tools": [HTTP], **more}
    with client.responses.create(stream=True, **wanted) as stream:
        events = [event.to_dict(mode="json") for event in stream]
    for event in events:
        check_event(event)
    whole: Response = client.responses.create(**wanted)
    check_response(json.loads(whole.to_json()))
    assert told(accumulate(events)) == told(whole)
    return whole


def told(response: Response) -> list[tuple[Any, ...]]:
    """Its status, and its items without their ids."""
    fields = ("type", "status", "server_label", "name", "arguments", "output", "content")
    items = [tuple(str(getattr(item, field, None)) for field in fields) for item in response.output]
    return [(response.status, response.incomplete_details and response.incomplete_details.reason), *items]


def kinds(response: Response) -> list[str]:
    return [item.type for item in response.output]


def names(response: Response) -> list[str]:
    """Of the calls, with the labels of their servers."""
    return [f"{item.server_label}/{item.name}" for item in response.output if item.type == "mcp_call"]


def outputs(response: Response) -> list[str | None]:
    return [item.output for item in response.output if item.type == "mcp_call"]


# ---- which tools


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
def test_the_fake_model_calls_the_first_tool_it_may_with_the_least_it_can_and_answers(
    agent_client: OpenAI, choice: Any, first: str
) -> None:
    response = agent_client.responses.create(model="fake", input="Go.", tools=[HTTP], tool_choice=choice)
    check_response(json.loads(response.to_json()))
    assert names(response) == [first]
    assert response.output_text.startswith("The tool said: ")
    assert response.status == "completed"


def test_with_none_nothing_is_called(agent_client: OpenAI) -> None:
    response = played(agent_client, "nothing", tool_choice="none")
    assert names(response) == []
    assert response.output_text == "You said: play nothing."


def test_a_choice_that_cannot_be_met_says_so(agent_client: OpenAI) -> None:
    for choice in ({"type": "mcp", "server_label": "other"}, {"type": "mcp", "server_label": "http", "name": "nope"}):
        with pytest.raises(BadRequestError) as refused:
            agent_client.responses.create(model="fake", input="Go.", tools=[HTTP], tool_choice=choice)  # type: ignore[call-overload]  # the one as the other
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
    response = played(agent_client, "nothing", tools=[{**HTTP, "allowed_tools": allowed}])
    item = response.output[0]
    assert item.type == "mcp_list_tools"
    assert {tool.name for tool in item.tools} == listed
    assert names(response) == ["http/echo" if "echo" in listed else "http/get-sum"]


@pytest.mark.shows("E.7")
def test_a_filter_by_effect_is_kept_too(agent_client: OpenAI) -> None:
    tools: Any = [{**HTTP, "allowed_tools": {"read_only": True}}]
    item = agent_client.responses.create(model="fake", input="Go.", tools=tools).output[0]
    assert item.type == "mcp_list_tools"
    hints: Any = [tool.annotations for tool in item.tools]
    assert hints
    assert all(hint["readOnlyHint"] is True for hint in hints)
    assert "toggle-simulated-logging" not in {tool.name for tool in item.tools}


def test_tools_of_one_name_on_two_servers_are_kept_apart(
    agent_client: OpenAI, everything: str, everything_by_sse: str
) -> None:
    tools: Any = [
        {"type": "mcp", "server_label": "one", "server_url": everything},
        {"type": "mcp", "server_label": "two", "server_url": everything_by_sse},
    ]
    response = played(agent_client, "twins", tools=tools)
    assert kinds(response)[:2] == ["mcp_list_tools", "mcp_list_tools"]
    assert names(response) == ["one/echo", "two/echo"]
    assert outputs(response) == ["Echo: first", "Echo: second"]


# ---- how many


@pytest.mark.shows("E.3")
def test_calls_of_one_turn_have_items_in_the_order_of_the_calls(agent_client: OpenAI) -> None:
    response = played(agent_client, "three")
    assert outputs(response) == [SUM, "Echo: hallo", "The sum of 1 and 1 is 2."]
    assert kinds(response)[-1] == "message"


@pytest.mark.shows("E.2")
def test_beyond_max_tool_calls_nothing_is_run_and_the_model_is_told(agent_client: OpenAI) -> None:
    response = played(agent_client, "three", max_tool_calls=1)
    assert outputs(response) == [SUM, None, None]
    assert response.max_tool_calls == 1
    assert "max_tool_calls" in response.output_text
    assert response.status == "completed"


@pytest.mark.shows("E.2")
def test_a_model_that_never_ends_has_to_answer_at_last(agent_client: OpenAI, everything: str) -> None:
    tools: Any = [{"type": "mcp", "server_label": "everything", "server_url": everything}]
    response = played(agent_client, "endless", tools=tools)
    assert outputs(response) == [SUM] * TURNS
    assert (response.status, response.output_text) == ("completed", f"The tool said: {SUM}")
    fewer = played(agent_client, "endless", tools=tools, max_tool_calls=2)
    assert (outputs(fewer), fewer.status) == ([SUM] * 2, "completed")


@pytest.mark.shows("E.2")
def test_max_output_tokens_are_for_all_turns_together(agent_client: OpenAI, everything: str) -> None:
    tools: Any = [{"type": "mcp", "server_label": "everything", "server_url": everything}]
    response = played(agent_client, "endless", tools=tools, max_output_tokens=23)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert response.usage.output_tokens <= 23


def test_one_call_is_made_where_parallel_ones_are_not_wanted(agent_client: OpenAI) -> None:
    assert outputs(played(agent_client, "three", parallel_tool_calls=False)) == [SUM]


def test_usage_adds_up_over_the_turns(agent_client: OpenAI) -> None:
    usage = played(agent_client, "sum").usage
    assert usage is not None
    given: Any = usage.input_tokens_details.to_dict()
    made: Any = usage.output_tokens_details.to_dict()
    assert len(given["input_tokens_per_turn"]) == len(made["output_tokens_per_turn"]) == 2
    assert sum(given["input_tokens_per_turn"]) == usage.input_tokens
    assert sum(given["cached_tokens_per_turn"]) == usage.input_tokens_details.cached_tokens
    assert sum(made["output_tokens_per_turn"]) == usage.output_tokens
    assert made["tool_output_tokens_per_turn"][0] == 0
    assert sum(made["tool_output_tokens_per_turn"]) == made["tool_output_tokens"] > 0


# ---- together with a client's own


@pytest.mark.shows("E.1")
def test_the_servers_tools_run_and_the_client_gets_its_call(agent_client: OpenAI) -> None:
    first = played(agent_client, "mixed", tools=[HTTP, WEATHER])
    assert kinds(first) == ["mcp_list_tools", "mcp_call", "function_call"]
    assert (first.status, outputs(first)) == ("completed", [SUM])
    call = first.output[-1]
    assert call.type == "function_call"
    given: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    second = agent_client.responses.create(
        model="fake", input=[given], previous_response_id=first.id, tools=[HTTP, WEATHER]
    )
    assert kinds(second) == ["message"]
    assert "sunny" in second.output_text


# ---- what goes on


@pytest.mark.parametrize("way", ["previous_response_id", "conversation", "items"])
@pytest.mark.shows("E.6")
def test_a_list_of_tools_is_taken_from_what_came_before(agent_client: OpenAI, way: str) -> None:
    start: Any = {}
    if way == "conversation":
        start = {"conversation": agent_client.conversations.create().id}
    first = agent_client.responses.create(model="fake", input="play sum.", tools=[HTTP], **start)
    assert kinds(first) == ["mcp_list_tools", "mcp_call", "message"]
    again: Any = {"conversation": start, "previous_response_id": {"previous_response_id": first.id}}.get(way, {})
    before: Any = [item.to_dict(mode="json") for item in first.output] if way == "items" else []
    second = agent_client.responses.create(
        model="fake", input=[*before, {"role": "user", "content": "play echo."}], tools=[HTTP], **(again or start)
    )
    check_response(json.loads(second.to_json()))
    assert kinds(second) == ["mcp_call", "message"]
    assert outputs(second) == ["Echo: hallo"]


def test_a_server_that_joins_later_is_listed_alone(agent_client: OpenAI) -> None:
    first = agent_client.responses.create(model="fake", input="play sum.", tools=[HTTP])
    both: Any = [HTTP, {"type": "mcp", "server_label": "stdio"}]
    second = agent_client.responses.create(model="fake", input="Go.", previous_response_id=first.id, tools=both)
    assert kinds(second)[0] == "mcp_list_tools"
    assert [item.server_label for item in second.output if item.type == "mcp_list_tools"] == ["stdio"]


def test_a_conversation_holds_what_was_sent(agent_client: OpenAI) -> None:
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
    bare = agent_client.responses.input_tokens.count(model="fake", input="Go.", previous_response_id=first.id)
    tooled = agent_client.responses.input_tokens.count(
        model="fake", input="Go.", previous_response_id=first.id, tools=[HTTP]
    )
    assert tooled.input_tokens > bare.input_tokens


# ---- approvals


@pytest.mark.shows("E.9")
def test_an_approval_runs_the_call_and_a_refusal_does_not(agent_client: OpenAI) -> None:
    asking: Any = {**HTTP, "require_approval": "always"}
    for approve in (True, False):
        first = played(agent_client, "sum", tools=[asking])
        request = first.output[-1]
        assert request.type == "mcp_approval_request"
        assert (first.status, json.loads(request.arguments)) == ("completed", {"a": 2, "b": 40})
        answer: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve}
        second = agent_client.responses.create(
            model="fake", input=[answer], previous_response_id=first.id, tools=[asking]
        )
        check_response(json.loads(second.to_json()))
        assert outputs(second) == ([SUM] if approve else [])
        assert second.output_text == f"The tool said: {SUM if approve else '[The user did not allow this call.]'}"


@pytest.mark.shows("E.9")
def test_an_approval_may_refer_to_its_request(agent_client: OpenAI) -> None:
    """As the AI SDK does, which sends no list of tools back."""
    asking: Any = {**HTTP, "require_approval": "always"}
    asked: Any = {"role": "user", "content": "play sum."}
    request = agent_client.responses.create(model="fake", input=[asked], tools=[asking]).output[-1]
    reference: Any = {"type": "item_reference", "id": request.id}
    answer: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    second = agent_client.responses.create(model="fake", input=[asked, reference, answer], tools=[asking])
    assert kinds(second) == ["mcp_list_tools", "mcp_call", "message"]
    assert outputs(second) == [SUM]


@pytest.mark.shows("E.9")
def test_only_named_tools_are_asked_about(agent_client: OpenAI) -> None:
    asking: Any = {**HTTP, "require_approval": {"always": {"tool_names": ["echo"]}}}
    assert kinds(played(agent_client, "sum", tools=[asking])) == ["mcp_list_tools", "mcp_call", "message"]
    assert kinds(played(agent_client, "echo", tools=[asking])) == ["mcp_list_tools", "mcp_approval_request"]
    both = played(agent_client, "three", tools=[asking])
    assert sorted(kinds(both)) == ["mcp_approval_request", "mcp_call", "mcp_call", "mcp_list_tools"]


@pytest.mark.shows("E.10")
def test_what_is_in_force_is_echoed(agent_client: OpenAI) -> None:
    (tool,) = played(agent_client, "nothing").tools
    assert tool.type == "mcp"
    assert tool.require_approval == "never"
