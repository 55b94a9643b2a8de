"""The npm package openai against real servers. Its stream helper is the strictest accumulator there is."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.oracles.responses import (
    accumulate,
    check_conversation,
    check_conversation_item,
    check_event,
    check_response,
)
from tests.support.npm import installed, node
from tests.support.server_process import Live

pytestmark = pytest.mark.needs("node")

HERE = Path(__file__).parent / "node"
Task = Callable[..., Any]


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script beside the package, which is installed once for each lock file."""
    folder = tmp_path_factory.mktemp("node")
    shutil.copy(HERE / "client.mjs", folder)
    (folder / "node_modules").symlink_to(installed(HERE) / "node_modules")
    return folder


@pytest.fixture
def task(fake: Live, node_folder: Path) -> Task:
    def run(name: str) -> Any:
        return json.loads(node("client.mjs", name, fake.v1, "fake", folder=node_folder))

    return run


@pytest.fixture
def small_task(embedded: Live, node_folder: Path) -> Task:
    def run(name: str) -> Any:
        model = json.loads(embedded.get("/v1/models")[1])["data"][0]["id"]
        return json.loads(node("client.mjs", name, embedded.v1, model, folder=node_folder))

    return run


@pytest.mark.shows("I.11")
def test_create_answers(task: Task) -> None:
    told = task("create")
    check_response({key: value for key, value in told["response"].items() if key != "output_text"})
    assert told["text"] == "You said: hi"
    assert told["requestId"].startswith("req_")


@pytest.mark.shows("I.11")
def test_every_event_of_a_stream_is_valid(task: Task) -> None:
    events = task("stream")["events"]
    for event in events:
        check_event(event)
    assert accumulate(events).output_text == "You said: hi"


@pytest.mark.shows("A.57", "I.11")
def test_the_stream_helper_accumulates_the_final_response(task: Task) -> None:
    told = task("helper")
    assert told["types"][0] == "response.created"
    assert told["types"][-1] == "response.completed"
    assert told["final"]["output_text"] == "You said: hi"


def test_the_stream_helper_takes_keepalives(pausing: Live, node_folder: Path) -> None:
    told = json.loads(node("client.mjs", "helper", pausing.v1, "fake", folder=node_folder))
    assert told["final"]["output_text"] == "You said: hi"
    assert "keepalive" in json.loads(node("client.mjs", "stream", pausing.v1, "fake", folder=node_folder))["types"]


def test_the_stream_helper_takes_reasoning_and_summaries(task: Task) -> None:
    told = task("thinking")
    assert [item["type"] for item in told["final"]["output"]] == ["reasoning", "message"]


@pytest.mark.shows("I.11")
def test_parse_gives_an_instance_of_the_schema(task: Task) -> None:
    told = task("parse")
    assert told["status"] == "completed"
    assert set(told["parsed"]) == {"city", "warm"}


def test_a_tool_loop_takes_one_round(task: Task) -> None:
    told = task("tools")
    assert told["call"]["name"] == "get_weather"
    assert set(json.loads(told["call"]["arguments"])) == {"city", "warm"}
    assert "sunny" in told["text"]


@pytest.mark.shows("E.6", "E.9", "I.11")
def test_the_stream_helper_takes_an_mcp_servers_tools(agentic: Live, everything: str, node_folder: Path) -> None:
    told = json.loads(node("client.mjs", "mcp", agentic.v1, "fake", everything, folder=node_folder))
    loop = ["mcp_list_tools", "mcp_call", "message"]
    for response in (told["whole"], told["final"]):
        assert [item["type"] for item in response["output"]] == loop
        assert response["output_text"] == "The tool said: The sum of 2 and 40 is 42."
    assert {"response.mcp_list_tools.completed", "response.mcp_call.completed"} <= set(told["types"])
    assert [item["type"] for item in told["asked"]["output"]] == ["mcp_list_tools", "mcp_approval_request"]
    assert [item["type"] for item in told["approved"]["output"]] == loop[1:]
    assert "response.mcp_call.completed" in told["approvedTypes"]


def test_errors_have_their_classes_codes_and_params(task: Task) -> None:
    told = task("errors")
    assert (told["temperature"]["kind"], told["temperature"]["param"]) == ("BadRequestError", "temperature")
    assert (told["stream"]["kind"], told["stream"]["param"]) == ("BadRequestError", "top_p")
    assert told["path"]["kind"] == "NotFoundError"


@pytest.mark.shows("A.3", "A.6", "A.9", "B.9", "I.11")
def test_what_was_stored_is_retrieved_listed_continued_and_deleted(task: Task) -> None:
    told = task("stored")
    assert told["found"] == told["made"]
    assert [item["content"][0]["text"] for item in told["input"]] == ["a", "b"]
    assert told["next"]["previous_response_id"] == told["made"]["id"]
    assert told["gone"]["kind"] == "NotFoundError"


@pytest.mark.shows("A.7", "A.8", "B.6", "I.11")
def test_background_is_polled_and_cancelled(task: Task) -> None:
    told = task("background")
    assert told["first"] in ("queued", "in_progress")
    assert told["response"]["output_text"] == "You said: hi"
    assert told["cancelled"]["status"] == "completed"  # it was over: cancelling changes nothing
    assert (told["refused"]["status"], told["refused"]["code"]) == (400, "cancellation_not_supported")


@pytest.mark.shows("A.5", "I.11")
def test_a_stream_that_broke_off_is_taken_up(pausing: Live, node_folder: Path) -> None:
    told = json.loads(node("client.mjs", "resume", pausing.v1, "fake", folder=node_folder))
    rest = [event for event in told["rest"] if event["type"] != "keepalive"]
    heard = [event for event in told["heard"] if event["type"] != "keepalive"]
    for event in rest:
        check_event(event)
    assert [event["sequence_number"] for event in heard + rest] == list(range(len(heard) + len(rest)))
    assert [event for event in told["helped"] if event["type"] != "keepalive"] == rest
    assert accumulate(heard + rest).output_text == told["final"]["output_text"] == "You said: hi"


@pytest.mark.shows("B.14", "B.16", "B.18", "B.19", "B.20", "B.21", "B.22", "I.11")
def test_a_conversation_from_its_beginning_to_its_end(task: Task) -> None:
    told = task("conversations")
    for made in (told["made"], told["changed"], told["left"], told["deleted"]):
        check_conversation({key: value for key, value in made.items() if key != "_request_id"})
    assert told["changed"]["metadata"] == {"l": "w"}
    said = [item["content"][0]["text"] for item in told["listed"]]
    assert said == ["one", "two", "three", "You said: three"]
    for item in (*told["listed"], told["item"]):
        check_conversation_item(item)
    assert told["item"]["id"] == told["added"]["last_id"]
    assert told["response"]["conversation"]["id"] == told["made"]["id"]
    assert told["gone"]["kind"] == "NotFoundError"


def test_models_are_listed_and_retrieved(task: Task) -> None:
    told = task("models")
    assert told["one"]["id"] == told["listed"][0]["id"]
    assert told["one"]["object"] == "model"


@pytest.mark.needs("llamacpp")
@pytest.mark.real_model
@pytest.mark.timeout(400)
def test_the_embedded_model_streams_to_the_helper(small_task: Task) -> None:
    told = small_task("helper")
    assert told["types"][0] == "response.created"
    assert told["final"]["status"] in ("completed", "incomplete")


@pytest.mark.needs("llamacpp")
@pytest.mark.real_model
@pytest.mark.timeout(400)
def test_the_embedded_model_keeps_to_a_schema(small_task: Task) -> None:
    told = small_task("parse")
    assert isinstance(told["parsed"]["city"], str)
    assert isinstance(told["parsed"]["warm"], bool)
