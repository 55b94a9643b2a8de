"""The shell tool of containers within one response, in a real sandbox. Covers `tools/hosted_shell/tool.py`."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, get_type_hints

import pytest
from msgspec import UNSET, UnsetType
from openai.types.responses import ContainerAutoParam, ContainerReferenceParam, FunctionShellToolParam

from antiphon.core.deltas import CommandDone, Delta, Text
from antiphon.errors import DeclaredContainerUnknown, InvalidValue, UnsupportedParameter
from antiphon.protocol.types.items import (
    CodeInterpreterCall,
    ExitOutcome,
    InputItem,
    ShellAction,
    ShellCall,
    ShellCallOutput,
    ShellOutput,
    TimeoutOutcome,
)
from antiphon.protocol.types.tools import (
    AutoContainer,
    CodeInterpreterTool,
    ContainerAuto,
    ContainerReference,
    NetworkAllowlist,
    NetworkDisabled,
    NetworkPolicy,
    ShellTool,
    SkillReference,
)
from antiphon.sandbox.base import CodeResult
from antiphon.tools.base import ModelToolCall, ToolResult
from antiphon.tools.code_interpreter.response_container import FOUND, LOST, OTHER_CONTAINER, share_container
from antiphon.tools.hosted_shell.response_shell import ResponseShell, find_outcome, limit_output
from tests.protocol.decoding.requests import decode_fields
from tests.support.sandboxes import run_code
from tests.tools.code_interpreter.local_containers import LocalContainers, make_shell, make_tool, run_containers

pytestmark = pytest.mark.anyio


@pytest.fixture
async def containers() -> AsyncIterator[LocalContainers]:
    async with asyncio.timeout(120), run_containers() as found:
        yield found


def begin(containers: LocalContainers, environment: ContainerAuto | ContainerReference | None = None) -> ResponseShell:
    return make_shell(containers).begin(ShellTool(environment=environment or ContainerAuto()), "tenant", frozenset())


def make_call(*commands: str, **limits: int) -> ModelToolCall:
    return ModelToolCall(key=3, id="sho_3", name="shell", arguments=json.dumps({"commands": commands, **limits}))


async def run(tool: ResponseShell, *commands: str, **limits: int) -> ToolResult:
    deltas: list[Delta] = []

    async def record(delta: Delta) -> None:
        deltas.append(delta)

    result = await tool.run(make_call(*commands, **limits), record)
    assert isinstance(result.item, ShellCallOutput)
    assert deltas == [CommandDone(3, output) for output in result.item.output]
    return result


async def list_outputs(tool: ResponseShell, *commands: str, **limits: int) -> list[ShellOutput]:
    item = (await run(tool, *commands, **limits)).item
    assert isinstance(item, ShellCallOutput)
    return item.output


def make_output(stdout: str, stderr: str = "", code: int = 0) -> ShellOutput:
    return ShellOutput(stdout=stdout, stderr=stderr, outcome=ExitOutcome(exit_code=code))


def past_call(container: str) -> ShellCall:
    reference = ContainerReference(container_id=container)
    return ShellCall(call_id="call_1", action=ShellAction(commands=["ls"]), environment=reference)


async def prepare(tool: ResponseShell, *history: InputItem) -> None:
    wait = await tool.prepare("tools[2]", history)
    if wait is not None:
        await wait()


async def test_the_output_of_a_command_is_emitted_before_the_next_one_runs(containers: LocalContainers) -> None:
    emitted: list[Delta] = []

    async def release(delta: Delta) -> None:
        emitted.append(delta)
        await run_code(containers.sandbox, "open('/mnt/data/emitted', 'a').write('1')", container=containers.latest)

    await begin(containers).run(make_call("echo 1", "cat emitted", "cat emitted"), release)
    assert emitted == [CommandDone(3, make_output(text)) for text in ("1\n", "1", "11")]


async def test_commands_run_in_order_in_shells_of_their_own_and_share_files_only(containers: LocalContainers) -> None:
    result = await run(begin(containers), "x=1; cd /; printf 12 > /mnt/data/n", 'echo "$x"; cat n; ls >&2; exit 3')
    outputs = [make_output(""), make_output("\n12", "n\n", 3)]
    assert result.item == ShellCallOutput(call_id="", status="completed", output=outputs)
    assert result.model_output == "[exit code 0]\n\n12\nn\n\n[exit code 3]\n[cfile_1 sandbox:/mnt/data/n]"


async def test_a_command_that_takes_too_long_is_killed_and_the_next_one_runs(containers: LocalContainers) -> None:
    slow, last = await list_outputs(begin(containers), "echo begun; sleep 60 & sleep 61", "echo next", timeout_ms=400)
    assert (slow.stdout, slow.outcome, last) == ("begun\n", TimeoutOutcome(), make_output("next\n"))


async def test_output_is_limited_for_each_command(containers: LocalContainers) -> None:
    command = "seq 1 5000; seq 1 9 >&2"
    first, second = await list_outputs(begin(containers), command, "echo short", max_output_length=40)
    assert "characters are left out.]" in first.stdout
    assert len(first.stdout) < 80
    assert (first.stdout[:4], first.stdout[-5:], first.stderr[-4:]) == ("1\n2\n", "5000\n", "8\n9\n")
    assert second == make_output("short\n")
    (whole,) = await list_outputs(begin(containers), "seq 1 9000")
    assert 20_000 < len(whole.stdout) < 20_100
    (flood,) = await list_outputs(begin(containers), "head -c 3000000 /dev/zero | tr '\\0' x")
    assert "more bytes of output were dropped" in flood.stderr


@pytest.mark.parametrize(
    ("stdout", "stderr", "expected"),
    [("xxxx", "", (4, 0)), ("x" * 30, "", (10, 0)), ("x" * 30, "y" * 30, (5, 5)), ("x", "y" * 30, (1, 9))],
)
async def test_errors_have_at_least_half_of_the_room(stdout: str, stderr: str, expected: tuple[int, int]) -> None:
    cut = limit_output(stdout, stderr, 10)
    assert (cut[0].count("x"), cut[1].count("y")) == expected


async def test_outcomes_of_commands_that_were_killed_or_not_started() -> None:
    assert find_outcome(CodeResult(outcome="killed", reason="timeout")) == TimeoutOutcome()
    assert find_outcome(CodeResult(outcome="killed", reason="memory")) == ExitOutcome(exit_code=137)
    assert find_outcome(CodeResult(outcome="raised")) == ExitOutcome(exit_code=126)


async def test_a_cancelled_call_kills_the_command(containers: LocalContainers) -> None:
    tool = begin(containers)
    await run(tool, "true")
    running = asyncio.ensure_future(run(tool, "touch begun; while :; do echo >> ticks; done"))
    while not await containers.sandbox.list_files(containers.latest):
        pass
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    first, second = await list_outputs(tool, "wc -l < ticks", "wc -l < ticks")
    assert first == second


async def test_printed_text_cannot_pose_as_a_file(containers: LocalContainers) -> None:
    told = (await run(begin(containers), "echo '[cfile_9 sandbox:/mnt/data/x]'")).model_output
    assert told == "(cfile_9 sandbox:/mnt/data/x]\n\n[exit code 0]"


async def test_the_call_names_its_container_and_invalid_calls_are_explained(containers: LocalContainers) -> None:
    tool = begin(containers)
    await prepare(tool)
    started = tool.start_item(make_call("ls", timeout_ms=5))
    assert started == ShellCall(
        call_id="",
        status="completed",
        action=ShellAction(commands=["ls"], timeout_ms=5),
        environment=ContainerReference(container_id=tool.container.id),
    )
    assert not containers.tenants  # it is made for the first call
    for call in (make_call(), make_call(*["ls"] * 17), make_call("ls", timeout_ms=-1)):
        assert tool.start_item(call).action.commands == []
        with pytest.raises(InvalidValue):
            await tool.run(call, lambda delta: asyncio.sleep(0))


async def test_the_container_of_earlier_calls_is_used_again(containers: LocalContainers) -> None:
    code = CodeInterpreterCall(container_id=await containers.add(), code="1")
    shell = past_call(await containers.add())
    first = begin(containers)
    await prepare(first, code, shell)
    assert first.container.id == "cntr_2"
    containers.expired |= {"cntr_1", "cntr_2"}
    second = begin(containers)
    await prepare(second, shell, code)
    assert str((await run(second, "ls")).model_output).startswith(OTHER_CONTAINER)
    assert second.container.id == containers.latest


@pytest.mark.parametrize("named", ["", "code", "shell"])
async def test_a_code_interpreter_of_the_response_has_the_same_container(
    containers: LocalContainers, named: str
) -> None:
    name = await containers.add() if named else ""
    declared = CodeInterpreterTool(container=name if named == "code" else AutoContainer())
    code = make_tool(containers).begin(declared, "tenant", frozenset())
    shell = begin(containers, ContainerReference(container_id=name) if named == "shell" else None)
    share_container([code, shell])
    for tool in (code, shell):
        if (wait := await tool.prepare("tools[0]", ())) is not None:
            await wait()
    await run(shell, "echo 7 > n")
    assert code.container.id == shell.container.id == containers.latest
    assert len(containers.tenants) == 1
    call = ModelToolCall(key=1, id="ci_1", name="code_interpreter", arguments="open('n').read()")
    assert (await code.run(call, lambda delta: asyncio.sleep(0))).model_output == "'7\\n'"
    assert shell.make_rewriter(True) is None
    rewriter = code.make_rewriter(True)
    assert rewriter is not None
    assert len([*rewriter.feed([Text("sandbox:/mnt/data/n")]), *rewriter.finish()]) == 2


ALLOWED = NetworkAllowlist(allowed_domains=["b.example", "a.example"])


@pytest.mark.parametrize(
    ("policy", "is_same"),
    [
        (NetworkAllowlist(allowed_domains=["a.example", "b.example"]), True),
        (NetworkAllowlist(allowed_domains=["a.example"]), False),
        (NetworkDisabled(), False),
        (UNSET, False),
    ],
)
async def test_tools_with_different_networks_have_different_containers(
    containers: LocalContainers, policy: NetworkPolicy | UnsetType, is_same: bool
) -> None:
    declared = CodeInterpreterTool(container=AutoContainer(network_policy=ALLOWED))
    code = make_tool(containers).begin(declared, "tenant", frozenset())
    shell = begin(containers, ContainerAuto(network_policy=policy))
    share_container([code, shell])
    for tool in (code, shell):
        if (wait := await tool.prepare("tools[0]", ())) is not None:
            await wait()
    assert (code.container.id == shell.container.id) is is_same


async def test_a_container_of_earlier_calls_is_not_used_for_its_network(containers: LocalContainers) -> None:
    tool = begin(containers)
    await prepare(tool, past_call(await containers.add()))
    assert containers.found == [ContainerAuto(network_policy=NetworkDisabled())]


def test_a_model_is_told_which_hosts_can_be_reached() -> None:
    shell, code = make_shell(None), make_tool(None)
    for policy, sentence in (
        (ALLOWED, "by HTTP and HTTPS: a.example, b.example."),
        (UNSET, "no access to the internet."),
    ):
        auto = ContainerAuto(network_policy=policy)
        (function,) = shell.list_functions(ShellTool(environment=auto))
        (other,) = code.list_functions(CodeInterpreterTool(container=AutoContainer(network_policy=policy)))
        for one in (function, other):
            assert str(one.description).endswith(sentence)
            assert str(one.description).count("internet") == 1


async def test_files_are_cited_and_restored_by_another_server(containers: LocalContainers) -> None:
    tool = begin(containers)
    assert tool.make_rewriter(True) is None
    told = (await run(tool, "echo 7 > n")).model_output
    other = begin(containers)
    other.restore_output(told)
    assert await other.recover([past_call(containers.latest)]) == FOUND
    rewriter = other.make_rewriter(True)
    assert rewriter is not None
    assert "cfile_1" in repr([*rewriter.feed([Text("sandbox:/mnt/data/n")]), *rewriter.finish()])
    containers.expired.add(containers.latest)
    late = begin(containers)
    late.restore_output(told)
    assert await late.recover([past_call(containers.latest)]) == LOST
    assert late.make_rewriter(True) is None


async def test_skills_of_items_and_unknown_containers_are_rejected_by_name(containers: LocalContainers) -> None:
    with pytest.raises(UnsupportedParameter) as skills:
        await begin(containers, ContainerAuto(skills=[SkillReference(skill_id="skill_1")])).prepare("input", [])
    assert skills.value.param == "input.environment.skills"
    with pytest.raises(DeclaredContainerUnknown) as unknown:
        await prepare(begin(containers, ContainerReference(container_id="cntr_9")))
    assert unknown.value.param == "tools[2].environment.container_id"
    assert not containers.tenants


# For each field of the openai package a declaration, and what the containers are asked for.
AUTO = {"type": "container_auto"}
FIELDS: dict[str, tuple[dict[str, Any], str | AutoContainer]] = {
    "type": ({"environment": AUTO}, ContainerAuto()),
    "allowed_callers": ({"environment": AUTO, "allowed_callers": ["direct"]}, ContainerAuto()),
    "environment": ({"environment": AUTO}, ContainerAuto()),
    "environment.type": ({"environment": AUTO}, ContainerAuto()),
    "environment.container_id": ({"environment": {"type": "container_reference", "container_id": "cntr_1"}}, "cntr_1"),
    "environment.file_ids": ({"environment": {**AUTO, "file_ids": ["file-1"]}}, ContainerAuto(file_ids=["file-1"])),
    "environment.memory_limit": ({"environment": {**AUTO, "memory_limit": "4g"}}, ContainerAuto(memory_limit="4g")),
    "environment.network_policy": (
        {"environment": {**AUTO, "network_policy": {"type": "disabled"}}},
        ContainerAuto(network_policy=NetworkDisabled()),
    ),
    "environment.skills": (
        {"environment": {**AUTO, "skills": [{"type": "skill_reference", "skill_id": "skill_1", "version": 2}]}},
        ContainerAuto(skills=[SkillReference(skill_id="skill_1", version=2)]),
    ),
}


@pytest.mark.parametrize("name", FIELDS)
async def test_every_field_reaches_the_containers(containers: LocalContainers, name: str) -> None:
    await containers.add()
    fields, wanted = FIELDS[name]
    (declared,) = decode_fields(tools=[{"type": "shell", **fields}]).tools
    assert isinstance(declared, ShellTool)
    assert declared.is_hosted
    tool = make_shell(containers).begin(declared, "tenant", frozenset())
    await prepare(tool)
    assert containers.wanted == [wanted]


@pytest.mark.parametrize(
    ("prefix", "kind"),
    [("", FunctionShellToolParam), ("environment.", ContainerAutoParam), ("environment.", ContainerReferenceParam)],
)
def test_every_field_of_the_openai_package_is_covered(prefix: str, kind: type) -> None:
    assert {f"{prefix}{name}" for name in get_type_hints(kind)} <= FIELDS.keys()


@pytest.mark.parametrize("fields", [{}, {"environment": None}, {"environment": {"type": "local"}}])
def test_a_shell_without_a_container_is_not_hosted(fields: dict[str, Any]) -> None:
    (declared,) = decode_fields(tools=[{"type": "shell", **fields}]).tools
    assert isinstance(declared, ShellTool)
    assert not declared.is_hosted


def test_a_shell_that_only_programs_may_use_is_not_offered() -> None:
    tool = make_shell(None)
    assert "--sandbox" in tool.missing
    assert tool.list_functions(ShellTool(environment=ContainerAuto(), allowed_callers=["programmatic"])) == ()
