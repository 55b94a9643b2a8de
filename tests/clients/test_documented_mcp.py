"""The MCP examples from the documentation of another Responses API server, run unchanged except for the address.

The requests are those of its curl examples; the other tests follow its Python examples.
"""

import json
from typing import Any
from urllib.parse import urlsplit

import pytest
from openai import OpenAI

from tests.oracles.responses import accumulate, check_conversation_items, check_event, check_response
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.needs("node")

MODEL = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture
def localhost_url(everything: str) -> str:
    """The URL of the reference server with the host name `localhost`, as in the examples."""
    return f"http://localhost:{urlsplit(everything).port}/mcp"


def mcp_tool(url: str, label: str, **fields: Any) -> Any:
    return {"type": "mcp", "server_url": url, "server_label": label, **fields}


@pytest.mark.shows("E.4", "E.7", "E.12")
def test_a_tool_with_every_documented_field_is_accepted(agent_server: ServerProcess, localhost_url: str) -> None:
    tool = mcp_tool(
        localhost_url,
        "my-mcp-server",
        server_description="My MCP server for data access",
        require_approval="never",
        allowed_tools=["echo", "get-sum"],
    )
    status, answer = agent_server.post({"model": MODEL, "input": "What is the capital of France?", "tools": [tool]})
    assert status == 200, answer
    response = json.loads(answer)
    check_response(response)
    assert [each["name"] for each in response["output"][0]["tools"]] == ["echo", "get-sum"]
    assert response["tools"] == [tool]


@pytest.mark.shows("E.1", "E.4", "E.6")
def test_the_curl_example_returns_the_documented_response(agent_server: ServerProcess, localhost_url: str) -> None:
    request = {
        "model": MODEL,
        "input": "Search for the latest news about AI",
        "instructions": "Be concise and factual",
        "max_output_tokens": 500,
        "temperature": 0.7,
        "tools": [mcp_tool(localhost_url, "search")],
        "tool_choice": "auto",
    }
    status, answer = agent_server.post(request)
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
    assert agent_server.get(f"/v1/responses/{response['id']}") == (200, answer)


@pytest.mark.shows("E.6")
def test_the_documented_events_have_the_documented_fields(agent_server: ServerProcess, localhost_url: str) -> None:
    status, answer = agent_server.post(
        {"model": MODEL, "input": "Hello!", "stream": True, "tools": [mcp_tool(localhost_url, "s")]}
    )
    assert status == 200
    lines = [line for line in answer.decode().split("\n\n") if line and not line.endswith("[DONE]")]
    events = [json.loads(line.partition("\ndata: ")[2]) for line in lines]
    for line, event in zip(lines, events, strict=True):
        check_event(event)
        assert line.startswith(f"event: {event['type']}\n")
    by_type: dict[str, dict[str, Any]] = {event["type"]: event for event in events}
    listed, call = accumulate(events).output[:2]
    for name, item, index in (
        ("mcp_list_tools.in_progress", listed, 0),
        ("mcp_list_tools.completed", listed, 0),
        ("mcp_call.in_progress", call, 1),
        ("mcp_call_arguments.delta", call, 1),
        ("mcp_call_arguments.done", call, 1),
        ("mcp_call.completed", call, 1),
    ):
        event = by_type[f"response.{name}"]
        assert (event["item_id"], event["output_index"]) == (item.id, index)
    assert call.type == "mcp_call"
    assert by_type["response.mcp_call_arguments.done"]["arguments"] == call.arguments


@pytest.mark.shows("E.1")
def test_the_agentic_workflow_example_runs(agent_client: OpenAI, localhost_url: str) -> None:
    response = agent_client.responses.create(
        model=MODEL,
        input="Search for the weather in San Francisco and summarize it",
        tools=[mcp_tool(localhost_url, "weather-service")],
        tool_choice="auto",
    )
    printed: list[str] = []
    for output in response.output:
        if output.type == "mcp_call":
            printed += [f"Tool called: {output.name}", f"Result: {output.output}"]
        elif output.type == "message":
            printed += [f"Answer: {content.text}" for content in output.content if content.type == "output_text"]
    assert printed == ["Tool called: echo", "Result: Echo: ", "Answer: The tool said: Echo: "]


@pytest.mark.shows("E.1", "B.22")
def test_the_multi_turn_conversation_example_runs(agent_client: OpenAI, localhost_url: str) -> None:
    conversation = agent_client.conversations.create(metadata={"session": "support-123"})
    for text in ("I need help with my order #12345", "Can you also check if there are any discounts available?"):
        agent_client.responses.create(
            model=MODEL, input=text, conversation=conversation.id, tools=[mcp_tool(localhost_url, "order-service")]
        )
    items = agent_client.conversations.items.list(conversation.id)
    check_conversation_items(json.loads(items.to_json()))
    kinds = [item.type for item in reversed(items.data)]
    assert kinds == ["message", "mcp_list_tools", "mcp_call", "message", "message", "mcp_call", "message"]


@pytest.mark.shows("E.6")
def test_the_streaming_example_runs(agent_client: OpenAI, localhost_url: str) -> None:
    printed: list[str] = []
    with agent_client.responses.create(
        model=MODEL, input="Explain quantum computing", stream=True, tools=[mcp_tool(localhost_url, "search")]
    ) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                printed.append(event.delta)
            elif event.type == "response.mcp_call.in_progress":
                printed.append(f"[Calling tool: {event.item_id}]")
            elif event.type == "response.completed":
                assert event.response.usage is not None
                printed.append(f"Tokens used: {event.response.usage.total_tokens}")
    assert printed[0].startswith("[Calling tool: mcp_")
    assert "".join(printed[1:-1]) == "The tool said: Echo: "
    assert printed[-1].startswith("Tokens used: ")
