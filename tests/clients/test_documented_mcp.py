"""What the documentation of another server of this API shows of MCP works as it is written there, but for the address.

The requests are those of its curl examples, the rest is what its Python examples do.
"""

import json
from typing import Any
from urllib.parse import urlsplit

import pytest
from openai import OpenAI

from tests.oracles.responses import accumulate, check_conversation_items, check_event, check_response
from tests.support.server_process import Live

pytestmark = pytest.mark.needs("node")

MODEL = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture
def localhost(everything: str) -> str:
    """By its name, as the examples have it."""
    return f"http://localhost:{urlsplit(everything).port}/mcp"


def server(url: str, label: str, **more: Any) -> Any:
    return {"type": "mcp", "server_url": url, "server_label": label, **more}


@pytest.mark.shows("E.4", "E.7", "E.12")
def test_the_tool_with_all_that_can_be_said_about_it(agentic: Live, localhost: str) -> None:
    tool = server(
        localhost,
        "my-mcp-server",
        server_description="My MCP server for data access",
        require_approval="never",
        allowed_tools=["echo", "get-sum"],
    )
    status, answer = agentic.post({"model": MODEL, "input": "What is the capital of France?", "tools": [tool]})
    assert status == 200, answer
    response = json.loads(answer)
    check_response(response)
    assert [each["name"] for each in response["output"][0]["tools"]] == ["echo", "get-sum"]
    assert response["tools"] == [tool]


@pytest.mark.shows("E.1", "E.4", "E.6")
def test_the_request_of_the_curl_example_is_answered_as_it_shows(agentic: Live, localhost: str) -> None:
    request = {
        "model": MODEL,
        "input": "Search for the latest news about AI",
        "instructions": "Be concise and factual",
        "max_output_tokens": 500,
        "temperature": 0.7,
        "tools": [server(localhost, "search")],
        "tool_choice": "auto",
    }
    status, answer = agentic.post(request)
    assert status == 200, answer
    response = json.loads(answer)
    check_response(response)
    listed, call, message = response["output"]
    assert (listed["type"], listed["server_label"]) == ("mcp_list_tools", "search")
    assert {"name", "description", "input_schema"} <= listed["tools"][0].keys()
    assert (call["type"], call["status"], call["server_label"]) == ("mcp_call", "completed", "search")
    assert isinstance(json.loads(call["arguments"]), dict)
    assert isinstance(call["output"], str)
    assert (message["type"], message["role"], message["status"]) == ("message", "assistant", "completed")
    assert response["usage"]["total_tokens"] == response["usage"]["input_tokens"] + response["usage"]["output_tokens"]
    assert (response["tool_choice"], response["parallel_tool_calls"], response["store"]) == ("auto", True, True)
    assert agentic.get(f"/v1/responses/{response['id']}") == (200, answer)


@pytest.mark.shows("E.6")
def test_the_events_that_it_lists_are_sent_with_the_fields_that_it_lists(agentic: Live, localhost: str) -> None:
    status, answer = agentic.post(
        {"model": MODEL, "input": "Hello!", "stream": True, "tools": [server(localhost, "s")]}
    )
    assert status == 200
    lines = [line for line in answer.decode().split("\n\n") if line and not line.endswith("[DONE]")]
    events = [json.loads(line.partition("\ndata: ")[2]) for line in lines]
    for line, event in zip(lines, events, strict=True):
        check_event(event)
        assert line.startswith(f"event: {event['type']}\n")
    by_type: dict[str, dict[str, Any]] = {event["type"]: event for event in events}
    listed, call = accumulate(events).output[:2]
    for name, item, place in (
        ("mcp_list_tools.in_progress", listed, 0),
        ("mcp_list_tools.completed", listed, 0),
        ("mcp_call.in_progress", call, 1),
        ("mcp_call_arguments.delta", call, 1),
        ("mcp_call_arguments.done", call, 1),
        ("mcp_call.completed", call, 1),
    ):
        event = by_type[f"response.{name}"]
        assert (event["item_id"], event["output_index"]) == (item.id, place)
    assert call.type == "mcp_call"
    assert by_type["response.mcp_call_arguments.done"]["arguments"] == call.arguments


@pytest.mark.shows("E.1")
def test_a_simple_agentic_workflow(agent_client: OpenAI, localhost: str) -> None:
    response = agent_client.responses.create(
        model=MODEL,
        input="Search for the weather in San Francisco and summarize it",
        tools=[server(localhost, "weather-service")],
        tool_choice="auto",
    )
    told: list[str] = []
    for output in response.output:
        if output.type == "mcp_call":
            told += [f"Tool called: {output.name}", f"Result: {output.output}"]
        elif output.type == "message":
            told += [f"Answer: {content.text}" for content in output.content if content.type == "output_text"]
    assert told == ["Tool called: echo", "Result: Echo: ", "Answer: The tool said: Echo: "]


@pytest.mark.shows("E.1", "B.22")
def test_a_conversation_of_several_turns_with_tools(agent_client: OpenAI, localhost: str) -> None:
    conversation = agent_client.conversations.create(metadata={"session": "support-123"})
    for text in ("I need help with my order #12345", "Can you also check if there are any discounts available?"):
        agent_client.responses.create(
            model=MODEL, input=text, conversation=conversation.id, tools=[server(localhost, "order-service")]
        )
    items = agent_client.conversations.items.list(conversation.id)
    check_conversation_items(json.loads(items.to_json()))
    kinds = [item.type for item in reversed(items.data)]
    assert kinds == ["message", "mcp_list_tools", "mcp_call", "message", "message", "mcp_call", "message"]


@pytest.mark.shows("E.6")
def test_a_stream_is_handled(agent_client: OpenAI, localhost: str) -> None:
    told: list[str] = []
    with agent_client.responses.create(
        model=MODEL, input="Explain quantum computing", stream=True, tools=[server(localhost, "search")]
    ) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                told.append(event.delta)
            elif event.type == "response.mcp_call.in_progress":
                told.append(f"[Calling tool: {event.item_id}]")
            elif event.type == "response.completed":
                assert event.response.usage is not None
                told.append(f"Tokens used: {event.response.usage.total_tokens}")
    assert told[0].startswith("[Calling tool: mcp_")
    assert "".join(told[1:-1]) == "The tool said: Echo: "
    assert told[-1].startswith("Tokens used: ")
