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
from tests.support.npm import install_packages, run_node
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.needs("node")

HERE = Path(__file__).parent / "node"
TaskRunner = Callable[..., Any]


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script beside the package, which is installed once for each lock file."""
    folder = tmp_path_factory.mktemp("node")
    shutil.copy(HERE / "client.mjs", folder)
    (folder / "node_modules").symlink_to(install_packages(HERE) / "node_modules")
    return folder


@pytest.fixture
def run_task(fake_server: ServerProcess, node_folder: Path) -> TaskRunner:
    def run(name: str) -> Any:
        return json.loads(run_node("client.mjs", name, fake_server.v1, "fake", folder=node_folder))

    return run


@pytest.fixture
def run_embedded_task(embedded_server: ServerProcess, node_folder: Path) -> TaskRunner:
    def run(name: str) -> Any:
        model = json.loads(embedded_server.get("/v1/models")[1])["data"][0]["id"]
        return json.loads(run_node("client.mjs", name, embedded_server.v1, model, folder=node_folder))

    return run


@pytest.mark.shows("I.11")
@pytest.mark.uses("openai-node", "answers")
def test_create_returns_a_valid_response(run_task: TaskRunner) -> None:
    result = run_task("create")
    check_response({key: value for key, value in result["response"].items() if key != "output_text"})
    assert result["text"] == "You said: hi"
    assert result["requestId"].startswith("req_")


@pytest.mark.shows("I.11")
@pytest.mark.uses("openai-node", "streaming")
def test_every_event_of_a_stream_is_valid(run_task: TaskRunner) -> None:
    events = run_task("stream")["events"]
    for event in events:
        check_event(event)
    assert accumulate(events).output_text == "You said: hi"


@pytest.mark.shows("A.57", "I.11")
def test_the_stream_helper_accumulates_the_final_response(run_task: TaskRunner) -> None:
    result = run_task("helper")
    assert result["types"][0] == "response.created"
    assert result["types"][-1] == "response.completed"
    assert result["final"]["output_text"] == "You said: hi"


def test_the_stream_helper_accepts_keepalives(slow_server: ServerProcess, node_folder: Path) -> None:
    result = json.loads(run_node("client.mjs", "helper", slow_server.v1, "fake", folder=node_folder))
    assert result["final"]["output_text"] == "You said: hi"
    assert (
        "keepalive" in json.loads(run_node("client.mjs", "stream", slow_server.v1, "fake", folder=node_folder))["types"]
    )


@pytest.mark.uses("openai-node", "reasoning")
def test_the_stream_helper_accepts_reasoning_and_summaries(run_task: TaskRunner) -> None:
    result = run_task("thinking")
    assert [item["type"] for item in result["final"]["output"]] == ["reasoning", "message"]


@pytest.mark.shows("I.11")
@pytest.mark.uses("openai-node", "structured output")
def test_parse_returns_an_instance_of_the_schema(run_task: TaskRunner) -> None:
    result = run_task("parse")
    assert result["status"] == "completed"
    assert set(result["parsed"]) == {"city", "warm"}


@pytest.mark.uses("openai-node", "tools")
def test_a_tool_loop_takes_one_round(run_task: TaskRunner) -> None:
    result = run_task("tools")
    assert result["call"]["name"] == "get_weather"
    assert set(json.loads(result["call"]["arguments"])) == {"city", "warm"}
    assert "sunny" in result["text"]


@pytest.mark.shows("E.6", "E.9", "I.11")
@pytest.mark.uses("openai-node", "hosted tools")
def test_the_stream_helper_accepts_the_tools_of_an_mcp_server(
    agent_server: ServerProcess, everything: str, node_folder: Path
) -> None:
    result = json.loads(run_node("client.mjs", "mcp", agent_server.v1, "fake", everything, folder=node_folder))
    loop = ["mcp_list_tools", "mcp_call", "message"]
    for response in (result["whole"], result["final"]):
        assert [item["type"] for item in response["output"]] == loop
        assert response["output_text"] == "The tool said: The sum of 2 and 40 is 42."
    assert {"response.mcp_list_tools.completed", "response.mcp_call.completed"} <= set(result["types"])
    assert [item["type"] for item in result["asked"]["output"]] == ["mcp_list_tools", "mcp_approval_request"]
    assert [item["type"] for item in result["approved"]["output"]] == loop[1:]
    assert "response.mcp_call.completed" in result["approvedTypes"]


def test_errors_raise_the_matching_class_and_param(run_task: TaskRunner) -> None:
    result = run_task("errors")
    assert (result["temperature"]["kind"], result["temperature"]["param"]) == ("BadRequestError", "temperature")
    assert (result["stream"]["kind"], result["stream"]["param"]) == ("BadRequestError", "top_p")
    assert result["path"]["kind"] == "NotFoundError"


@pytest.mark.shows("A.3", "A.6", "A.9", "B.9", "I.11")
@pytest.mark.uses("openai-node", "stored state")
def test_a_stored_response_is_retrieved_listed_continued_and_deleted(run_task: TaskRunner) -> None:
    result = run_task("stored")
    assert result["found"] == result["made"]
    assert [item["content"][0]["text"] for item in result["input"]] == ["a", "b"]
    assert result["next"]["previous_response_id"] == result["made"]["id"]
    assert result["gone"]["kind"] == "NotFoundError"


@pytest.mark.shows("A.7", "A.8", "B.6", "I.11")
@pytest.mark.uses("openai-node", "background")
def test_a_background_response_is_polled_and_cancelled(run_task: TaskRunner) -> None:
    result = run_task("background")
    assert result["first"] in ("queued", "in_progress")
    assert result["response"]["output_text"] == "You said: hi"
    assert result["cancelled"]["status"] == "completed"  # already completed, so cancelling changes nothing
    assert (result["refused"]["status"], result["refused"]["code"]) == (400, "cancellation_not_supported")


@pytest.mark.shows("A.5", "I.11")
def test_a_broken_stream_is_resumed(slow_server: ServerProcess, node_folder: Path) -> None:
    result = json.loads(run_node("client.mjs", "resume", slow_server.v1, "fake", folder=node_folder))
    resumed = [event for event in result["rest"] if event["type"] != "keepalive"]
    received = [event for event in result["heard"] if event["type"] != "keepalive"]
    for event in resumed:
        check_event(event)
    assert [event["sequence_number"] for event in received + resumed] == list(range(len(received) + len(resumed)))
    assert [event for event in result["helped"] if event["type"] != "keepalive"] == resumed
    assert accumulate(received + resumed).output_text == result["final"]["output_text"] == "You said: hi"


@pytest.mark.shows("B.14", "B.16", "B.18", "B.19", "B.20", "B.21", "B.22", "I.11")
def test_a_conversation_is_created_used_and_deleted(run_task: TaskRunner) -> None:
    result = run_task("conversations")
    for made in (result["made"], result["changed"], result["left"], result["deleted"]):
        check_conversation({key: value for key, value in made.items() if key != "_request_id"})
    assert result["changed"]["metadata"] == {"l": "w"}
    texts = [item["content"][0]["text"] for item in result["listed"]]
    assert texts == ["one", "two", "three", "You said: three"]
    for item in (*result["listed"], result["item"]):
        check_conversation_item(item)
    assert result["item"]["id"] == result["added"]["last_id"]
    assert result["response"]["conversation"]["id"] == result["made"]["id"]
    assert result["gone"]["kind"] == "NotFoundError"


def test_models_are_listed_and_retrieved(run_task: TaskRunner) -> None:
    result = run_task("models")
    assert result["one"]["id"] == result["listed"][0]["id"]
    assert result["one"]["object"] == "model"


@pytest.mark.needs("llamacpp")
@pytest.mark.real_model
@pytest.mark.timeout(400)
@pytest.mark.uses("openai-node", "streaming")
def test_the_embedded_model_streams_to_the_helper(run_embedded_task: TaskRunner) -> None:
    result = run_embedded_task("helper")
    assert result["types"][0] == "response.created"
    assert result["final"]["status"] in ("completed", "incomplete")


@pytest.mark.needs("llamacpp")
@pytest.mark.real_model
@pytest.mark.timeout(400)
@pytest.mark.uses("openai-node", "structured output")
def test_the_embedded_model_follows_a_schema(run_embedded_task: TaskRunner) -> None:
    result = run_embedded_task("parse")
    assert isinstance(result["parsed"]["city"], str)
    assert isinstance(result["parsed"]["warm"], bool)
