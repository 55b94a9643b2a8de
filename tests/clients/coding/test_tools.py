"""Tools of coding agents and of MCP servers as packages from npm declare them: they know each call for what it is."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.coding.client_runner import Client
from tests.support.server_process import Live

pytestmark = [pytest.mark.real_client, pytest.mark.needs("node"), pytest.mark.timeout(700)]

HERE = Path(__file__).parent
PATCH = {"type": "create_file", "path": "hello.txt", "diff": "+Hello!\n"}
SUM = "The tool said: The sum of 2 and 40 is 42."


def printed(client: Client, program: str, *arguments: str) -> Any:
    ran = client.script((HERE / program).read_text("utf-8"), *arguments)
    assert ran.code == 0, str(ran)
    return json.loads(ran.out)


def patch_in(said: str) -> Any:
    """What the client was asked to do, which it told the model, who told it us."""
    return json.loads(said[said.index("{") :])


@pytest.mark.parametrize("store", ["true", "false"])
@pytest.mark.shows("E.24", "E.25", "I.14")
def test_the_ai_sdk_runs_shells_patches_and_custom_tools(client: Client, coding: Live, store: str) -> None:
    told = printed(client, "ai-sdk-tools.mjs", coding.v1, store)
    for said in (*told["shell"], *told["local_shell"]):
        assert "The sum is 42." in said
    assert [patch_in(said) for said in told["apply_patch"]] == [PATCH] * 2
    assert told["sql"] == ["The tool said: rows of SELECT 1;"] * 2


@pytest.mark.parametrize("store", ["true", "false"])
@pytest.mark.shows("E.6", "I.14")
def test_the_ai_sdk_reads_what_the_server_did(client: Client, agentic: Live, everything: str, store: str) -> None:
    assert printed(client, "ai-sdk-tools.mjs", agentic.v1, store, everything) == {"mcp": [SUM] * 2}


@pytest.mark.parametrize("stream", ["true", "false"])
@pytest.mark.shows("E.24", "E.25", "I.14")
def test_the_agents_sdk_runs_shells_and_patches(client: Client, coding: Live, stream: str) -> None:
    told = printed(client, "agents-tools.mjs", coding.v1, stream)
    assert "The sum is 42." in told["shell"]
    assert patch_in(told["apply_patch"]) == PATCH


@pytest.mark.shows("E.6", "I.14")
def test_the_agents_sdk_reads_what_the_server_did(client: Client, agentic: Live, everything: str) -> None:
    assert printed(client, "agents-tools.mjs", agentic.v1, "false", everything) == {"mcp": SUM}


def test_the_agents_sdk_takes_no_stream_of_several_turns(client: Client, agentic: Live, everything: str) -> None:
    """As its page says: it takes all details of `usage` for numbers, and there are lists then."""
    source = (HERE / "agents-tools.mjs").read_text("utf-8")
    ran = client.script(source, agentic.v1, "true", everything)
    assert ran.code == 1, str(ran)
    assert "input_tokens_per_turn" in ran.err
