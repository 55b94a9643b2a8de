"""Shells, patches and searches for tools, as the openai package and the Agents SDK run them: commands are run, files
are written, and the model hears of it."""

import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, ApplyPatchTool, LocalShellTool, OpenAIResponsesModel, Runner, ShellTool, apply_diff
from agents.editor import ApplyPatchOperation, ApplyPatchResult
from agents.run import RunConfig
from agents.tool import LocalShellCommandRequest, ShellCommandRequest
from openai import AsyncOpenAI, OpenAI

from tests.support.server_process import Live, serving

pytestmark = pytest.mark.anyio

QUIET = RunConfig(tracing_disabled=True)


def reply(when: str, name: str, **arguments: Any) -> str:
    """What the model calls then, in five pieces."""
    call = f"{{ name = \"{name}\", arguments = '{json.dumps(arguments)}', chunks = 5 }}"
    return f'[[reply]]\nwhen = {{ {when} }}\nsteps = [{{ say = "I see." }}, {{ call = {call} }}]\n'


MADE, CHANGED = "+def f():\n+    return 1\n", "@@ def f():\n-    return 1\n+    return 2\n"
# By the tool that it may call; after an output it answers with that.
SCRIPT = [
    '[[reply]]\nwhen = { output = "" }\nsteps = [{ answer = true }]\n',
    reply('tool = "shell"', "shell", commands=["echo $((40+2))", "exit 3"]),
    reply('tool = "local_shell"', "local_shell", command=["echo", "local 42"]),
    reply('tool = "apply_patch", contains = "make"', "apply_patch", type="create_file", path="a.py", diff=MADE),
    reply('tool = "apply_patch"', "apply_patch", type="update_file", path="a.py", diff=CHANGED),
    reply('tool = "tool_search"', "tool_search", query="maps"),
]


@pytest.fixture(scope="module")
def coding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    path = tmp_path_factory.mktemp("coding") / "script.toml"
    path.write_text("\n".join(SCRIPT))
    with serving("--engine", "fake", "--fake-script", str(path)) as live:
        yield live


@pytest.fixture
def openai(coding: Live) -> Iterator[OpenAI]:
    with OpenAI(base_url=coding.v1, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
async def model(coding: Live) -> AsyncIterator[OpenAIResponsesModel]:
    async with AsyncOpenAI(base_url=coding.v1, api_key="unused", max_retries=0, timeout=60) as client:
        yield OpenAIResponsesModel(model="fake", openai_client=client)


@pytest.mark.shows("E.24")
def test_the_stream_helper_takes_a_shell_call_and_its_commands(openai: OpenAI) -> None:
    with openai.responses.stream(model="fake", input="go", tools=[{"type": "shell"}]) as stream:
        commands = [event.command for event in stream if event.type == "response.shell_call_command.done"]
        final = stream.get_final_response()
    item = final.output[-1]
    assert item.type == "shell_call"
    assert item.action.commands == commands == ["echo $((40+2))", "exit 3"]
    output: Any = {
        "type": "shell_call_output",
        "call_id": item.call_id,
        "output": [{"stdout": "42\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}] * 2,
    }
    second = openai.responses.create(
        model="fake", previous_response_id=final.id, input=[output], tools=[{"type": "shell"}]
    )
    assert "42" in second.output_text


@pytest.mark.shows("E.23")
def test_a_search_by_the_client_hands_in_tools(openai: OpenAI) -> None:
    tools: Any = [
        {"type": "tool_search", "execution": "client"},
        {"type": "function", "name": "map_of", "parameters": None, "strict": False, "defer_loading": True},
    ]
    with openai.responses.stream(model="fake", input="go", tools=tools) as stream:
        stream.until_done()
        final = stream.get_final_response()
    item = final.output[-1]
    assert item.type == "tool_search_call"
    assert (item.execution, item.arguments) == ("client", {"query": "maps"})
    output: Any = {"type": "tool_search_output", "execution": "client", "call_id": item.call_id, "tools": tools[1:]}
    second = openai.responses.create(model="fake", previous_response_id=final.id, input=[output], tools=tools)
    assert "map_of" in second.output_text


@pytest.mark.needs("node")
@pytest.mark.shows("E.23")
def test_a_deferred_mcp_server_is_asked_for_its_tools_once_a_search_has_found_it(agent_client: OpenAI) -> None:
    server = {"type": "mcp", "server_label": "http", "defer_loading": True}
    asked: Any = {"model": "fake", "tools": [{"type": "tool_search", "execution": "client"}, server]}
    first = agent_client.responses.create(**asked, input="play sum.")
    assert "mcp_list_tools" not in [item.type for item in first.output]
    search = {"type": "tool_search_call", "call_id": "call_1", "execution": "client", "arguments": {"query": "sums"}}
    found = {"type": "tool_search_output", "call_id": "call_1", "execution": "client", "tools": [server]}
    given: Any = [search, found, {"role": "user", "content": "play sum."}]
    second = agent_client.responses.create(**asked, input=given)
    assert [item.type for item in second.output] == ["mcp_list_tools", "mcp_call", "message"]
    assert "42" in second.output_text


def ran(request: ShellCommandRequest) -> str:
    done = [subprocess.run(["sh", "-c", each], capture_output=True, text=True) for each in request.data.action.commands]
    return "".join([f"{one.stdout}[{one.returncode}]" for one in done])


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.shows("E.24", "I.14")
async def test_the_agents_sdk_runs_a_shell(model: OpenAIResponsesModel, streamed: bool) -> None:
    agent = Agent(name="coder", model=model, tools=[ShellTool(executor=ran)])
    if streamed:
        result: Any = Runner.run_streamed(agent, "go", run_config=QUIET)
        assert [event async for event in result.stream_events()]
    else:
        result = await Runner.run(agent, "go", run_config=QUIET)
    assert "42" in str(result.final_output)
    assert "[3]" in str(result.final_output)


def ran_locally(request: LocalShellCommandRequest) -> str:
    return subprocess.run(request.data.action.command, capture_output=True, text=True).stdout


@pytest.mark.shows("E.24", "I.14")
async def test_the_agents_sdk_runs_a_local_shell(model: OpenAIResponsesModel) -> None:
    agent = Agent(name="coder", model=model, tools=[LocalShellTool(executor=ran_locally)])
    result = await Runner.run(agent, "go", run_config=QUIET)
    assert "local 42" in str(result.final_output)


class Editor:
    """Of the files in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        (self._folder / operation.path).write_text(apply_diff("", operation.diff or "", mode="create"))
        return ApplyPatchResult(status="completed", output=f"made {operation.path}")

    def update_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        path = self._folder / operation.path
        path.write_text(apply_diff(path.read_text(), operation.diff or ""))
        return ApplyPatchResult(status="completed", output=f"changed {operation.path}")

    def delete_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        (self._folder / operation.path).unlink()
        return ApplyPatchResult(status="completed", output=f"deleted {operation.path}")


@pytest.mark.shows("E.25", "I.14")
async def test_the_agents_sdk_makes_and_changes_files(model: OpenAIResponsesModel, tmp_path: Path) -> None:
    agent = Agent(name="coder", model=model, tools=[ApplyPatchTool(editor=Editor(tmp_path))])
    made = await Runner.run(agent, "make a.py", run_config=QUIET)
    assert "made a.py" in str(made.final_output)
    assert (tmp_path / "a.py").read_text() == "def f():\n    return 1"
    changed = await Runner.run(agent, "change it", run_config=QUIET)
    assert "changed a.py" in str(changed.final_output)
    assert (tmp_path / "a.py").read_text() == "def f():\n    return 2"
