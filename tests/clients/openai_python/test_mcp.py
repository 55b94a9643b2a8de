"""The `openai` package with tools of the MCP reference server: by URL and by label, over every transport, as JSON and
streamed. All results are validated against the types of the package.
"""

import json
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI, OpenAI
from openai.types.responses import Response
from openai.types.responses.response_output_item import McpCall, McpListTools

from tests.clients.tool_definitions import CityPopulation
from tests.oracles.responses import accumulate, check_event, check_input_items, check_response

pytestmark = pytest.mark.needs("node")

HTTP: Any = {"type": "mcp", "server_label": "http"}
LOOP_ITEMS = ["mcp_list_tools", "mcp_call", "message"]
LOOP_EVENTS = [
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
    """The reference server as an MCP tool, by URL and by label, over each transport."""
    match request.param:
        case "url":
            return {"type": "mcp", "server_label": "any", "server_url": request.getfixturevalue("everything")}
        case "url, SSE":
            return {"type": "mcp", "server_label": "any", "server_url": request.getfixturevalue("everything_by_sse")}
        case "label":
            return HTTP
        case _:
            return {"type": "mcp", "server_label": "stdio"}


def validate(response: Response) -> Response:
    check_response(json.loads(response.to_json()))
    return response


def item_types(response: Response) -> list[str]:
    return [item.type for item in response.output]


def get_mcp_call(response: Response) -> McpCall:
    (call,) = [item for item in response.output if item.type == "mcp_call"]
    return call


def stream_play(client: OpenAI, play: str, **fields: Any) -> list[dict[str, Any]]:
    """Stream a play and return its events, each of them validated."""
    with client.responses.create(model="fake", input=f"play {play}.", stream=True, **fields) as stream:
        events = [event.to_dict(mode="json") for event in stream]
    for event in events:
        check_event(event)
    return events


def run_play(client: OpenAI, play: str, **fields: Any) -> Response:
    """Run a play and return its validated response."""
    return validate(client.responses.create(model="fake", input=f"play {play}.", **{"tools": [HTTP], **fields}))


def drop_repeats(names: list[str]) -> list[str]:
    """Drop each name that equals its predecessor."""
    return [name for index, name in enumerate(names) if index == 0 or names[index - 1] != name]


@pytest.mark.shows("E.1", "E.4", "E.5", "E.6", "E.12")
@pytest.mark.uses("openai-python", "hosted tools")
def test_tools_are_listed_and_called_and_the_model_answers(agent_client: OpenAI, server: Any) -> None:
    response = run_play(agent_client, "sum", tools=[server])
    assert response.status == "completed"
    assert item_types(response) == LOOP_ITEMS
    listed = response.output[0]
    assert isinstance(listed, McpListTools)
    assert {"echo", "get-sum", "get-tiny-image"} <= {tool.name for tool in listed.tools}
    call = get_mcp_call(response)
    assert (call.server_label, call.name, call.status) == (server["server_label"], "get-sum", "completed")
    assert json.loads(call.arguments) == {"a": 2, "b": 40}
    assert call.output == "The sum of 2 and 40 is 42."
    assert response.output_text == "The tool said: The sum of 2 and 40 is 42."
    assert agent_client.responses.retrieve(response.id).output == response.output


@pytest.mark.shows("E.4", "E.5", "E.6")
def test_a_stream_emits_all_events_in_order(agent_client: OpenAI, server: Any) -> None:
    events = stream_play(agent_client, "sum", tools=[server])
    assert drop_repeats([event["type"] for event in events]) == LOOP_EVENTS
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    final = accumulate(events)
    assert item_types(final) == LOOP_ITEMS
    assert get_mcp_call(final).output == "The sum of 2 and 40 is 42."
    assert agent_client.responses.retrieve(final.id).output == final.output


@pytest.mark.anyio
async def test_the_async_client_gets_the_same_output(async_agent_client: AsyncOpenAI) -> None:
    response = await async_agent_client.responses.create(model="fake", input="play sum.", tools=[HTTP])
    assert get_mcp_call(validate(response)).output == "The sum of 2 and 40 is 42."
    stream = await async_agent_client.responses.create(model="fake", input="play sum.", tools=[HTTP], stream=True)
    events = [event.to_dict(mode="json") async for event in stream]
    assert get_mcp_call(accumulate(events)).output == "The sum of 2 and 40 is 42."


def test_the_stream_helper_returns_the_final_response(agent_client: OpenAI) -> None:
    with agent_client.responses.stream(model="fake", input="play sum.", tools=[HTTP]) as stream:
        event_types = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.mcp_call.completed" in event_types
    assert item_types(final) == LOOP_ITEMS
    assert final.output_text == "The tool said: The sum of 2 and 40 is 42."


def test_parse_returns_an_instance_after_a_tool_call(agent_client: OpenAI) -> None:
    response = agent_client.responses.parse(model="fake", input="play sum.", tools=[HTTP], text_format=CityPopulation)
    assert item_types(response) == LOOP_ITEMS
    assert isinstance(response.output_parsed, CityPopulation)


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
def test_every_kind_of_tool_output_is_in_the_mcp_call_item(agent_client: OpenAI, play: str, output: str) -> None:
    call = get_mcp_call(run_play(agent_client, play))
    assert call.status == "completed"
    assert output in (call.output or "")


def test_an_image_from_a_tool_reaches_the_model(agent_client: OpenAI) -> None:
    first = run_play(agent_client, "image")
    assert "[image png 20x20]" in first.output_text
    assert '"data":"iVBORw0KGgo' in (get_mcp_call(first).output or "")


@pytest.mark.shows("E.6")
def test_arguments_rejected_by_the_mcp_server_fail_the_call_and_reach_the_model(agent_client: OpenAI) -> None:
    response = run_play(agent_client, "bad")
    call = get_mcp_call(response)
    assert (call.status, call.output) == ("failed", None)
    assert call.error is not None
    assert "expected number, received string" in json.dumps(call.to_dict()["error"])
    assert "expected number, received string" in response.output_text
    types = [event["type"] for event in stream_play(agent_client, "bad", tools=[HTTP])]
    assert "response.mcp_call.failed" in types
    assert "response.mcp_call.completed" not in types


def test_an_outdated_tool_list_is_replaced(agent_client: OpenAI) -> None:
    run_play(agent_client, "sum")  # the server's tools are cached now
    gone = {"name": "gone", "input_schema": {"type": "object"}}
    listed: Any = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "http", "tools": [gone]}
    question: Any = {"role": "user", "content": "play sum."}
    response = validate(agent_client.responses.create(model="fake", input=[listed, question], tools=[HTTP]))
    assert item_types(response) == LOOP_ITEMS


def test_a_call_of_an_unknown_tool_is_dropped(agent_client: OpenAI) -> None:
    response = run_play(agent_client, "unknown")
    assert response.status == "completed"
    assert item_types(response) == ["mcp_list_tools", "message"]


@pytest.mark.shows("E.2", "E.3")
def test_a_silent_call_times_out_and_a_call_with_progress_completes(agent_client: OpenAI) -> None:
    """The second call takes longer than the tool timeout, but reports progress."""
    response = run_play(agent_client, "long")
    silent, lively = [item for item in response.output if item.type == "mcp_call"]
    assert (silent.status, lively.status) == ("failed", "completed")
    assert "did not answer in time" in json.dumps(silent.to_dict()["error"])
    assert "Steps: 6" in (lively.output or "")


@pytest.mark.shows("E.6")
def test_an_unreachable_server_yields_a_list_item_with_an_error(agent_client: OpenAI) -> None:
    server: Any = {"type": "mcp", "server_label": "dead", "server_url": "http://127.0.0.1:1/mcp"}
    events = stream_play(agent_client, "nothing", tools=[server])
    final = accumulate(events)
    (listed, message) = final.output
    assert isinstance(listed, McpListTools)
    assert "cannot be reached" in (listed.error or "")
    assert message.type == "message"
    assert "response.mcp_list_tools.failed" in [event["type"] for event in events]


def test_a_failed_tool_list_is_retried_by_the_next_request(agent_client: OpenAI) -> None:
    listed: Any = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "http", "tools": [], "error": "down"}
    question: Any = {"role": "user", "content": "play sum."}
    response = agent_client.responses.create(model="fake", input=[listed, question], tools=[HTTP])
    assert item_types(response) == LOOP_ITEMS


def test_tool_choice_required_fails_if_the_server_is_unreachable(agent_client: OpenAI) -> None:
    server: Any = {"type": "mcp", "server_label": "dead", "server_url": "http://127.0.0.1:1/mcp"}
    with pytest.raises(APIStatusError, match="cannot be reached") as failed:
        agent_client.responses.create(model="fake", input="Go.", tools=[server], tool_choice="required")
    assert failed.value.status_code == 424


def test_a_background_response_calls_tools_and_can_be_streamed(agent_client: OpenAI) -> None:
    made = agent_client.responses.create(model="fake", input="play sum.", tools=[HTTP], background=True)
    assert made.status in ("queued", "in_progress")
    with agent_client.responses.retrieve(made.id, stream=True) as stream:
        events = [event.to_dict(mode="json") for event in stream]
    for event in events:
        check_event(event)
    final = accumulate(events)
    assert item_types(final) == LOOP_ITEMS
    assert validate(agent_client.responses.retrieve(made.id)).output == final.output
    with agent_client.responses.retrieve(made.id, stream=True, starting_after=5) as resumed:
        assert [event.to_dict(mode="json") for event in resumed] == events[6:]


def test_a_response_can_be_cancelled_while_its_tools_run(agent_client: OpenAI) -> None:
    with agent_client.responses.create(
        model="fake", input="play long.", tools=[HTTP], background=True, stream=True
    ) as stream:
        events = []
        for event in stream:
            events.append(event)
            if event.type == "response.mcp_call_arguments.done":
                break
    assert events[0].type == "response.created"
    cancelled = validate(agent_client.responses.cancel(events[0].response.id))
    assert cancelled.status == "cancelled"
    assert {item.status for item in cancelled.output if item.type == "mcp_call"} <= {"incomplete", "failed"}
    assert agent_client.responses.retrieve(cancelled.id) == cancelled


def test_output_items_are_accepted_as_input(agent_client: OpenAI) -> None:
    first = run_play(agent_client, "sum")
    sent: Any = [*(item.to_dict(mode="json") for item in first.output), {"role": "user", "content": "play echo."}]
    second = validate(agent_client.responses.create(model="fake", input=sent, tools=[HTTP]))
    assert item_types(second) == ["mcp_call", "message"]
    page = agent_client.responses.input_items.list(second.id, order="asc")
    check_input_items(json.loads(page.to_json()))
    assert [item.type for item in page.data] == [*LOOP_ITEMS, "message"]
