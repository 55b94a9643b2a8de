"""The shell tool of containers on a tool server."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from antiphon.core.deltas import CommandDone, Delta
from antiphon.errors import UnsupportedParameter
from antiphon.protocol.types.items import (
    ExitOutcome,
    ShellAction,
    ShellCall,
    ShellCallOutput,
    ShellOutput,
    TimeoutOutcome,
)
from antiphon.protocol.types.tools import ContainerAuto, ContainerReference, ShellTool, SkillReference
from antiphon.tools.base import ModelToolCall, ToolResult
from antiphon.tools.hosted_shell.response_shell import ResponseShell
from antiphon.tools.tool_server.shell import ServedShell
from tests.tools.tool_server.local_tool_server import LocalToolServer, make_services, run_tool_server

pytestmark = pytest.mark.anyio


@pytest.fixture
async def opened() -> AsyncIterator[tuple[LocalToolServer, ResponseShell]]:
    with run_tool_server() as server:
        built_in = ServedShell(make_services(server.url))
        yield server, built_in.begin(ShellTool(environment=ContainerAuto()), "tenant", frozenset())
        await built_in.close()


def make_call(*commands: str, **limits: int) -> ModelToolCall:
    return ModelToolCall(key=3, id="sho_3", name="shell", arguments=json.dumps({"commands": commands, **limits}))


async def run(tool: ResponseShell, *commands: str, **limits: int) -> ToolResult:
    """Run commands; the output of each is emitted when it has ended."""
    emitted: list[Delta] = []

    async def emit(delta: Delta) -> None:
        emitted.append(delta)

    result = await tool.run(make_call(*commands, **limits), emit)
    assert isinstance(result.item, ShellCallOutput)
    assert emitted == [CommandDone(3, output) for output in result.item.output]
    return result


def make_output(stdout: str, stderr: str = "", code: int = 0) -> ShellOutput:
    return ShellOutput(stdout=stdout, stderr=stderr, outcome=ExitOutcome(exit_code=code))


async def test_commands_are_sent_one_by_one_and_structured_content_has_their_outcome(opened: Any) -> None:
    server, tool = opened
    result = await run(tool, "echo out; echo err >&2; exit 3", "echo next", timeout_ms=1500)
    assert result.item == ShellCallOutput(
        call_id="", status="completed", output=[make_output("out\n", "err\n", 3), make_output("next\n")]
    )
    assert result.model_output == "out\n\nerr\n\n[exit code 3]\nnext\n\n[exit code 0]"
    assert [arguments for _, arguments, _ in server.calls] == [
        {"cmd": ["bash", "-lc", "echo out; echo err >&2; exit 3"], "timeout": 2},
        {"cmd": ["bash", "-lc", "echo next"], "timeout": 2},
    ]


async def test_text_alone_is_standard_output_and_an_error_is_an_exit_code(opened: Any) -> None:
    _, tool = opened
    result = await run(tool, "echo plain", "echo plain; exit 7")
    assert isinstance(result.item, ShellCallOutput)
    assert result.item.output == [make_output("plain\n"), make_output("plain\n", code=1)]


async def test_output_is_limited(opened: Any) -> None:
    _, tool = opened
    result = await run(tool, "seq 1 5000", max_output_length=40)
    assert isinstance(result.item, ShellCallOutput)
    assert len(result.item.output[0].stdout) < 80


async def test_a_command_without_an_answer_at_its_deadline_has_timed_out(opened: Any) -> None:
    server, tool = opened
    server.released.clear()
    result = await run(tool, "echo never", timeout_ms=1)
    assert isinstance(result.item, ShellCallOutput)
    assert result.item.output == [ShellOutput(stdout="", stderr="", outcome=TimeoutOutcome())]


async def test_the_item_of_a_call_names_the_session_of_earlier_calls(opened: Any) -> None:
    _, tool = opened
    reference = ContainerReference(container_id="cntr_7")
    past = ShellCall(call_id="call_1", action=ShellAction(commands=["ls"]), environment=reference)
    await tool.prepare("tools[0]", [past])
    assert tool.start_item(make_call("pwd")).environment == reference
    assert tool.start_item(make_call()).action.commands == []
    assert await tool.recover([]) == ""


@pytest.mark.parametrize(
    ("environment", "field"),
    [
        (ContainerReference(container_id="cntr_1"), "container_id"),
        (ContainerAuto(file_ids=["file_1"]), "file_ids"),
        (ContainerAuto(skills=[SkillReference(skill_id="skill_1")]), "skills"),
    ],
)
async def test_a_declaration_of_a_container_is_refused_by_its_field(
    environment: ContainerAuto | ContainerReference, field: str
) -> None:
    built_in = ServedShell(make_services("http://127.0.0.1:9"))
    tool = built_in.begin(ShellTool(environment=environment), "tenant", frozenset())
    with pytest.raises(UnsupportedParameter) as raised:
        await tool.prepare("tools[0]", [])
    assert raised.value.param == f"tools[0].environment.{field}"
