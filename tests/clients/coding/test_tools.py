"""Tools of coding agents and of MCP servers as packages from npm declare them: the packages recognise each call by its
type.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.coding.client_runner import Client
from tests.support.server_process import ServerProcess

pytestmark = [pytest.mark.real_client, pytest.mark.needs("node"), pytest.mark.timeout(700)]

HERE = Path(__file__).parent
PATCH = {"type": "create_file", "path": "hello.txt", "diff": "+Hello!\n"}
SUM = "The tool said: The sum of 2 and 40 is 42."


def run_program(client: Client, program: str, *arguments: str) -> Any:
    ran = client.run_script((HERE / program).read_text("utf-8"), *arguments)
    assert ran.code == 0, str(ran)
    return json.loads(ran.out)


def parse_patch(text: str) -> Any:
    """Parse the patch operation: the client returned it as tool output, and the model repeats it in its answer."""
    return json.loads(text[text.index("{") :])


@pytest.mark.parametrize("store", ["true", "false"])
@pytest.mark.shows("E.24", "E.25", "I.14")
def test_the_ai_sdk_runs_shells_patches_and_custom_tools(
    client: Client, coding_server: ServerProcess, store: str
) -> None:
    results = run_program(client, "ai-sdk-tools.mjs", coding_server.v1, store)
    for text in (*results["shell"], *results["local_shell"]):
        assert "The sum is 42." in text
    assert [parse_patch(text) for text in results["apply_patch"]] == [PATCH] * 2
    assert results["sql"] == ["The tool said: rows of SELECT 1;"] * 2


@pytest.mark.parametrize("store", ["true", "false"])
@pytest.mark.shows("E.6", "I.14")
@pytest.mark.uses("ai-sdk", "hosted tools")
def test_the_ai_sdk_accepts_mcp_calls_of_the_server(
    client: Client, agent_server: ServerProcess, everything: str, store: str
) -> None:
    assert run_program(client, "ai-sdk-tools.mjs", agent_server.v1, store, everything) == {"mcp": [SUM] * 2}


@pytest.mark.parametrize("stream", ["true", "false"])
@pytest.mark.shows("E.24", "E.25", "I.14")
def test_the_agents_sdk_runs_shells_and_patches(client: Client, coding_server: ServerProcess, stream: str) -> None:
    results = run_program(client, "agents-tools.mjs", coding_server.v1, stream)
    assert "The sum is 42." in results["shell"]
    assert parse_patch(results["apply_patch"]) == PATCH


@pytest.mark.shows("E.6", "I.14")
@pytest.mark.uses("agents-js", "hosted tools")
def test_the_agents_sdk_accepts_mcp_calls_of_the_server(
    client: Client, agent_server: ServerProcess, everything: str
) -> None:
    assert run_program(client, "agents-tools.mjs", agent_server.v1, "false", everything) == {"mcp": SUM}


def test_the_agents_sdk_rejects_a_stream_with_several_turns(
    client: Client, agent_server: ServerProcess, everything: str
) -> None:
    """As its page says: the SDK expects a number in every detail of `usage`, and several turns report lists."""
    source = (HERE / "agents-tools.mjs").read_text("utf-8")
    ran = client.run_script(source, agent_server.v1, "true", everything)
    assert ran.code == 1, str(ran)
    assert "input_tokens_per_turn" in ran.err
