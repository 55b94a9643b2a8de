"""Shell, patch and tool search tools with the `openai` package and the Agents SDK: the client runs the commands and
edits the files, and the model receives the results.
"""

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

from tests.support.server_process import ServerProcess, run_server

pytestmark = pytest.mark.anyio

NO_TRACING = RunConfig(tracing_disabled=True)


def render_reply(when: str, name: str, **arguments: Any) -> str:
    """Render a script reply in which the model makes this call, with the arguments in five pieces."""
    call = f"{{ name = \"{name}\", arguments = '{json.dumps(arguments)}', chunks = 5 }}"
    return f'[[reply]]\nwhen = {{ {when} }}\nsteps = [{{ say = "I see." }}, {{ call = {call} }}]\n'


CREATE_DIFF, UPDATE_DIFF = "+def f():\n+    return 1\n", "@@ def f():\n-    return 1\n+    return 2\n"
# One call per offered tool; a request that ends with a tool output is answered with that output.
SCRIPT = [
    '[[reply]]\nwhen = { output = "" }\nsteps = [{ answer = true }]\n',
    render_reply('tool = "shell"', "shell", commands=["echo $((40+2))", "exit 3"]),
    render_reply('tool = "local_shell"', "local_shell", command=["echo", "local 42"]),
    render_reply(
        'tool = "apply_patch", contains = "make"', "apply_patch", type="create_file", path="a.py", diff=CREATE_DIFF
    ),
    render_reply('tool = "apply_patch"', "apply_patch", type="update_file", path="a.py", diff=UPDATE_DIFF),
    render_reply('tool = "tool_search"', "tool_search", query="maps"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    path = tmp_path_factory.mktemp("coding") / "script.toml"
    path.write_text("\n".join(SCRIPT))
    with run_server("--engine", "fake", "--fake-script", str(path)) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.v1, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
async def model(server: ServerProcess) -> AsyncIterator[OpenAIResponsesModel]:
    async with AsyncOpenAI(base_url=server.v1, api_key="unused", max_retries=0, timeout=60) as client:
        yield OpenAIResponsesModel(model="fake", openai_client=client)


@pytest.mark.shows("E.24")
def test_the_stream_helper_parses_a_shell_call_and_its_commands(client: OpenAI) -> None:
    with client.responses.stream(model="fake", input="go", tools=[{"type": "shell"}]) as stream:
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
    second = client.responses.create(
        model="fake", previous_response_id=final.id, input=[output], tools=[{"type": "shell"}]
    )
    assert "42" in second.output_text


@pytest.mark.shows("E.23")
def test_a_client_side_tool_search_adds_the_tools_it_returns(client: OpenAI) -> None:
    tools: Any = [
        {"type": "tool_search", "execution": "client"},
        {"type": "function", "name": "map_of", "parameters": None, "strict": False, "defer_loading": True},
    ]
    with client.responses.stream(model="fake", input="go", tools=tools) as stream:
        stream.until_done()
        final = stream.get_final_response()
    item = final.output[-1]
    assert item.type == "tool_search_call"
    assert (item.execution, item.arguments) == ("client", {"query": "maps"})
    output: Any = {"type": "tool_search_output", "execution": "client", "call_id": item.call_id, "tools": tools[1:]}
    second = client.responses.create(model="fake", previous_response_id=final.id, input=[output], tools=tools)
    assert "map_of" in second.output_text


@pytest.mark.needs("node")
@pytest.mark.shows("E.23")
def test_a_deferred_mcp_server_is_listed_after_a_tool_search_returns_it(agent_client: OpenAI) -> None:
    server = {"type": "mcp", "server_label": "http", "defer_loading": True}
    fields: Any = {"model": "fake", "tools": [{"type": "tool_search", "execution": "client"}, server]}
    first = agent_client.responses.create(**fields, input="play sum.")
    assert "mcp_list_tools" not in [item.type for item in first.output]
    search = {"type": "tool_search_call", "call_id": "call_1", "execution": "client", "arguments": {"query": "sums"}}
    found = {"type": "tool_search_output", "call_id": "call_1", "execution": "client", "tools": [server]}
    items: Any = [search, found, {"role": "user", "content": "play sum."}]
    second = agent_client.responses.create(**fields, input=items)
    assert [item.type for item in second.output] == ["mcp_list_tools", "mcp_call", "message"]
    assert "42" in second.output_text


def run_shell(request: ShellCommandRequest) -> str:
    done = [subprocess.run(["sh", "-c", each], capture_output=True, text=True) for each in request.data.action.commands]
    return "".join([f"{one.stdout}[{one.returncode}]" for one in done])


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.shows("E.24", "I.14")
async def test_the_agents_sdk_runs_a_shell(model: OpenAIResponsesModel, streamed: bool) -> None:
    agent = Agent(name="coder", model=model, tools=[ShellTool(executor=run_shell)])
    if streamed:
        result: Any = Runner.run_streamed(agent, "go", run_config=NO_TRACING)
        assert [event async for event in result.stream_events()]
    else:
        result = await Runner.run(agent, "go", run_config=NO_TRACING)
    assert "42" in str(result.final_output)
    assert "[3]" in str(result.final_output)


def run_local_shell(request: LocalShellCommandRequest) -> str:
    return subprocess.run(request.data.action.command, capture_output=True, text=True).stdout


@pytest.mark.shows("E.24", "I.14")
async def test_the_agents_sdk_runs_a_local_shell(model: OpenAIResponsesModel) -> None:
    agent = Agent(name="coder", model=model, tools=[LocalShellTool(executor=run_local_shell)])
    result = await Runner.run(agent, "go", run_config=NO_TRACING)
    assert "local 42" in str(result.final_output)


class Editor:
    """Edits the files of one folder."""

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
async def test_the_agents_sdk_creates_and_updates_files(model: OpenAIResponsesModel, tmp_path: Path) -> None:
    agent = Agent(name="coder", model=model, tools=[ApplyPatchTool(editor=Editor(tmp_path))])
    created = await Runner.run(agent, "make a.py", run_config=NO_TRACING)
    assert "made a.py" in str(created.final_output)
    assert (tmp_path / "a.py").read_text() == "def f():\n    return 1"
    updated = await Runner.run(agent, "change it", run_config=NO_TRACING)
    assert "changed a.py" in str(updated.final_output)
    assert (tmp_path / "a.py").read_text() == "def f():\n    return 2"
