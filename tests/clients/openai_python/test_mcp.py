"""The openai package and the reference server of MCP: by URL and by label, over every transport, in one piece and
streamed. What comes is what the package's types say."""

import json
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI, OpenAI
from openai.types.responses import Response
from openai.types.responses.response_output_item import McpCall, McpListTools

from tests.clients.tool_definitions import Place
from tests.oracles.responses import accumulate, check_event, check_input_items, check_response

pytestmark = pytest.mark.needs("node")

HTTP: Any = {"type": "mcp", "server_label": "http"}
LOOP = ["mcp_list_tools", "mcp_call", "message"]
EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.mcp_list_tools.in_progress",
    "response.mcp_list_tools.completed",
    "response.output_item.done",
    "response.output_item.added",
    "response.mcp_call.in_progress",
    "response.mcp_call_arguments.delta",
    "response.mcp_call_arguments.done",
    "response.mcp_call.completed",
    "response.output_item.done",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


@pytest.fixture(params=["url", "url, SSE", "label", "label, stdio"])
def server(request: pytest.FixtureRequest) -> Any:
    """Every way to say which server is meant."""
    match request.param:
        case "url":
            return {"type": "mcp", "server_label": "any", "server_url": request.getfixturevalue("everything")}
        case "url, SSE":
            return {"type": "mcp", "server_label": "any", "server_url": request.getfixturevalue("everything_by_sse")}
        case "label":
            return HTTP
        case _:
            return {"type": "mcp", "server_label": "stdio"}


def checked(response: Response) -> Response:
    check_response(json.loads(response.to_json()))
    return response


def kinds(response: Response) -> list[str]:
    return [item.type for item in response.output]


def called(response: Response) -> McpCall:
    (call,) = [item for item in response.output if item.type == "mcp_call"]
    return call


def streamed(client: OpenAI, play: str, **more: Any) -> list[dict[str, Any]]:
    """All its events, each of which is valid."""
    with client.responses.create(model="fake", input=f"play {play}.", stream=True, **more) as stream:
        events = [event.to_dict(mode="json") for event in stream]
    for event in events:
        check_event(event)
    return events


def played(client: OpenAI, play: str, **more: Any) -> Response:
    return checked(client.responses.create(model="fake", input=f"play {play}.", **{"tools": [HTTP], **more}))


def once(names: list[str]) -> list[str]:
    """Without what follows its like."""
    return [name for place, name in enumerate(names) if place == 0 or names[place - 1] != name]


@pytest.mark.shows("E.1", "E.4", "E.5", "E.6", "E.12")
def test_tools_are_listed_called_and_answered(agent_client: OpenAI, server: Any) -> None:
    response = played(agent_client, "sum", tools=[server])
    assert response.status == "completed"
    assert kinds(response) == LOOP
    listed = response.output[0]
    assert isinstance(listed, McpListTools)
    assert {"echo", "get-sum", "get-tiny-image"} <= {tool.name for tool in listed.tools}
    call = called(response)
    assert (call.server_label, call.name, call.status) == (server["server_label"], "get-sum", "completed")
    assert json.loads(call.arguments) == {"a": 2, "b": 40}
    assert call.output == "The sum of 2 and 40 is 42."
    assert response.output_text == "The tool said: The sum of 2 and 40 is 42."
    assert agent_client.responses.retrieve(response.id).output == response.output


@pytest.mark.shows("E.4", "E.5", "E.6")
def test_a_stream_tells_all_of_it_in_order(agent_client: OpenAI, server: Any) -> None:
    events = streamed(agent_client, "sum", tools=[server])
    assert once([event["type"] for event in events]) == EVENTS
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    final = accumulate(events)
    assert kinds(final) == LOOP
    assert called(final).output == "The sum of 2 and 40 is 42."
    assert agent_client.responses.retrieve(final.id).output == final.output


@pytest.mark.anyio
async def test_the_asynchronous_client_is_told_the_same(async_agent_client: AsyncOpenAI) -> None:
    response = await async_agent_client.responses.create(model="fake", input="play sum.", tools=[HTTP])
    assert called(checked(response)).output == "The sum of 2 and 40 is 42."
    stream = await async_agent_client.responses.create(model="fake", input="play sum.", tools=[HTTP], stream=True)
    events = [event.to_dict(mode="json") async for event in stream]
    assert called(accumulate(events)).output == "The sum of 2 and 40 is 42."


def test_the_stream_helper_gives_the_final_response(agent_client: OpenAI) -> None:
    with agent_client.responses.stream(model="fake", input="play sum.", tools=[HTTP]) as stream:
        told = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.mcp_call.completed" in told
    assert kinds(final) == LOOP
    assert final.output_text == "The tool said: The sum of 2 and 40 is 42."


def test_parse_gives_an_instance_after_the_tool_has_spoken(agent_client: OpenAI) -> None:
    response = agent_client.responses.parse(model="fake", input="play sum.", tools=[HTTP], text_format=Place)
    assert kinds(response) == LOOP
    assert isinstance(response.output_parsed, Place)


@pytest.mark.parametrize(
    ("play", "output"),
    [
        ("echo", "Echo: hallo"),
        ("structure", '"conditions":"Light rain / drizzle"'),
        ("links", '"uri":"demo://resource/dynamic/text/2"'),
        ("image", '"mimeType":"image/png"'),
    ],
)
@pytest.mark.shows("E.6")
def test_whatever_a_tool_gives_is_in_its_item(agent_client: OpenAI, play: str, output: str) -> None:
    call = called(played(agent_client, play))
    assert call.status == "completed"
    assert output in (call.output or "")


def test_the_model_sees_the_picture_that_a_tool_gave(agent_client: OpenAI) -> None:
    first = played(agent_client, "image")
    assert "[image png 20x20]" in first.output_text
    assert '"data":"iVBORw0KGgo' in (called(first).output or "")


@pytest.mark.shows("E.6")
def test_arguments_that_the_server_refuses_are_an_error_that_the_model_is_told(agent_client: OpenAI) -> None:
    response = played(agent_client, "bad")
    call = called(response)
    assert (call.status, call.output) == ("failed", None)
    assert call.error is not None
    assert "expected number, received string" in json.dumps(call.to_dict()["error"])
    assert "expected number, received string" in response.output_text
    types = [event["type"] for event in streamed(agent_client, "bad", tools=[HTTP])]
    assert "response.mcp_call.failed" in types
    assert "response.mcp_call.completed" not in types


def test_a_list_that_is_not_what_the_server_offers_now_is_replaced(agent_client: OpenAI) -> None:
    played(agent_client, "sum")  # what it offers is known
    gone = {"name": "gone", "input_schema": {"type": "object"}}
    listed: Any = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "http", "tools": [gone]}
    asked: Any = {"role": "user", "content": "play sum."}
    response = checked(agent_client.responses.create(model="fake", input=[listed, asked], tools=[HTTP]))
    assert kinds(response) == LOOP


def test_a_call_of_something_that_nobody_offers_is_nothing(agent_client: OpenAI) -> None:
    response = played(agent_client, "unheard")
    assert response.status == "completed"
    assert kinds(response) == ["mcp_list_tools", "message"]


@pytest.mark.shows("E.2", "E.3")
def test_a_silent_call_is_given_up_and_a_lively_one_is_waited_for(agent_client: OpenAI) -> None:
    """The second takes longer than anybody may be silent, and tells how it gets on."""
    response = played(agent_client, "long")
    silent, lively = [item for item in response.output if item.type == "mcp_call"]
    assert (silent.status, lively.status) == ("failed", "completed")
    assert "did not answer in time" in json.dumps(silent.to_dict()["error"])
    assert "Steps: 6" in (lively.output or "")


@pytest.mark.shows("E.6")
def test_a_server_that_is_not_there_is_an_item_with_an_error(agent_client: OpenAI) -> None:
    server: Any = {"type": "mcp", "server_label": "dead", "server_url": "http://127.0.0.1:1/mcp"}
    events = streamed(agent_client, "nothing", tools=[server])
    final = accumulate(events)
    (listed, said) = final.output
    assert isinstance(listed, McpListTools)
    assert "cannot be reached" in (listed.error or "")
    assert said.type == "message"
    assert "response.mcp_list_tools.failed" in [event["type"] for event in events]


def test_a_server_that_was_not_there_is_asked_again_by_the_next_request(agent_client: OpenAI) -> None:
    listed: Any = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "http", "tools": [], "error": "down"}
    asked: Any = {"role": "user", "content": "play sum."}
    response = agent_client.responses.create(model="fake", input=[listed, asked], tools=[HTTP])
    assert kinds(response) == LOOP


def test_a_demand_that_a_server_cannot_meet_because_it_is_not_there_says_so(agent_client: OpenAI) -> None:
    server: Any = {"type": "mcp", "server_label": "dead", "server_url": "http://127.0.0.1:1/mcp"}
    with pytest.raises(APIStatusError, match="cannot be reached") as failed:
        agent_client.responses.create(model="fake", input="Go.", tools=[server], tool_choice="required")
    assert failed.value.status_code == 424


def test_a_response_in_the_background_calls_tools_and_can_be_followed(agent_client: OpenAI) -> None:
    made = agent_client.responses.create(model="fake", input="play sum.", tools=[HTTP], background=True)
    assert made.status in ("queued", "in_progress")
    with agent_client.responses.retrieve(made.id, stream=True) as stream:
        events = [event.to_dict(mode="json") for event in stream]
    for event in events:
        check_event(event)
    final = accumulate(events)
    assert kinds(final) == LOOP
    assert checked(agent_client.responses.retrieve(made.id)).output == final.output
    with agent_client.responses.retrieve(made.id, stream=True, starting_after=5) as rest:
        assert [event.to_dict(mode="json") for event in rest] == events[6:]


def test_a_response_can_be_cancelled_while_its_tools_run(agent_client: OpenAI) -> None:
    with agent_client.responses.create(
        model="fake", input="play long.", tools=[HTTP], background=True, stream=True
    ) as stream:
        heard = []
        for event in stream:
            heard.append(event)
            if event.type == "response.mcp_call_arguments.done":
                break
    assert heard[0].type == "response.created"
    cancelled = checked(agent_client.responses.cancel(heard[0].response.id))
    assert cancelled.status == "cancelled"
    assert {item.status for item in cancelled.output if item.type == "mcp_call"} <= {"incomplete", "failed"}
    assert agent_client.responses.retrieve(cancelled.id) == cancelled


def test_items_that_are_sent_back_are_known_as_input(agent_client: OpenAI) -> None:
    first = played(agent_client, "sum")
    sent: Any = [*(item.to_dict(mode="json") for item in first.output), {"role": "user", "content": "play echo."}]
    second = checked(agent_client.responses.create(model="fake", input=sent, tools=[HTTP]))
    assert kinds(second) == ["mcp_call", "message"]
    page = agent_client.responses.input_items.list(second.id, order="asc")
    check_input_items(json.loads(page.to_json()))
    assert [item.type for item in page.data] == [*LOOP, "message"]
