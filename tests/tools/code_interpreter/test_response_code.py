"""The code_interpreter tool within one response, in a real sandbox. Covers `tools/code_interpreter/tool.py`
and `tools/code_interpreter/response_container.py`."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, get_type_hints

import pytest
from openai.types.responses.tool_param import CodeInterpreter as CodeInterpreterParam
from openai.types.responses.tool_param import CodeInterpreterContainerCodeInterpreterToolAuto as AutoParam

from antiphon.core.deltas import CallStarted, Delta, Progress, Text
from antiphon.errors import (
    ContainerExpired,
    DeclaredContainerExpired,
    DeclaredContainerUnknown,
    EngineFailed,
    InvalidValue,
)
from antiphon.protocol.types.items import CodeInterpreterCall, CodeLogs, InputItem, Message
from antiphon.protocol.types.parts import InputFile, InputImage, InputText, MessagePart
from antiphon.protocol.types.tools import AutoContainer, CodeInterpreterTool, NetworkDisabled
from antiphon.tools.base import ModelToolCall, ToolResult
from antiphon.tools.code_interpreter.response_code import ResponseCode
from antiphon.tools.code_interpreter.response_container import (
    FOUND,
    LOST,
    MAX_INPUT_FILES,
    MAX_PREVIOUS,
    OTHER_CONTAINER,
)
from antiphon.tools.code_interpreter.run_output import RESTARTED
from tests.protocol.decoding.requests import decode_fields
from tests.tools.code_interpreter.local_containers import PYPLOT, LocalContainers, make_tool, run_containers

pytestmark = pytest.mark.anyio

OUTPUTS = "code_interpreter_call.outputs"


@pytest.fixture
async def containers() -> AsyncIterator[LocalContainers]:
    async with asyncio.timeout(120), run_containers() as found:
        yield found


def begin(containers: LocalContainers, *include: str, container: str | AutoContainer | None = None) -> ResponseCode:
    declared = CodeInterpreterTool() if container is None else CodeInterpreterTool(container=container)
    return make_tool(containers).begin(declared, "tenant", frozenset(include))


def make_call(code: str, key: int = 3) -> ModelToolCall:
    return ModelToolCall(key=key, id=f"ci_{key}", name="code_interpreter", arguments=code)


async def run(tool: ResponseCode, code: str, deltas: list[Delta] | None = None) -> ToolResult:
    async def record(delta: Delta) -> None:
        if deltas is not None:
            deltas.append(delta)

    return await tool.run(make_call(code), record)


async def tell(tool: ResponseCode, code: str) -> str:
    """Run code, and return what the model is told."""
    told = (await run(tool, code)).model_output
    assert isinstance(told, str)
    return told


def past_call(container: str) -> CodeInterpreterCall:
    return CodeInterpreterCall(container_id=container, code="1", status="completed")


async def prepare(tool: ResponseCode, *history: InputItem) -> None:
    wait = await tool.prepare("tools[2]", history)
    if wait is not None:
        await wait()


async def test_variables_are_kept_and_outputs_are_listed_only_if_included(containers: LocalContainers) -> None:
    deltas: list[Delta] = []
    plain, listed = begin(containers), begin(containers, OUTPUTS)
    result = await run(plain, "x = 6\nprint('six')\nx * 7", deltas)
    assert deltas == [Progress(3, "interpreting")]
    code = "x = 6\nprint('six')\nx * 7"
    assert result.item == CodeInterpreterCall(status="completed", container_id=containers.latest, code=code)
    assert result.model_output == "six\n42"
    assert await tell(plain, "x + 1") == "7"
    item = (await run(listed, "print('six')")).item
    assert item == CodeInterpreterCall(
        status="completed", container_id=containers.latest, code="print('six')", outputs=[CodeLogs(logs="six\n")]
    )


async def test_an_exception_completes_the_call_and_its_traceback_is_output(containers: LocalContainers) -> None:
    result = await run(begin(containers, OUTPUTS), "1 / 0")
    assert isinstance(result.item, CodeInterpreterCall)
    assert result.item.status == "completed"
    assert "ZeroDivisionError" in repr(result.item.outputs)
    assert "ZeroDivisionError" in repr(result.model_output)


async def test_code_that_kills_python_fails_and_the_next_call_says_that_variables_are_lost(
    containers: LocalContainers,
) -> None:
    tool = begin(containers, OUTPUTS)
    result = await run(tool, "import os\nx = 1\nopen('/mnt/data/kept', 'w').close()\nos._exit(3)")
    assert isinstance(result.item, CodeInterpreterCall)
    assert result.item.status == "failed"
    assert "Python was killed" in repr(result.item.outputs)
    told = await tell(tool, "import os\nos.listdir('/mnt/data'), 'x' in dir()")
    assert told.startswith(RESTARTED)
    assert "(['kept'], False)" in told


async def test_calls_of_one_response_run_in_their_order(containers: LocalContainers) -> None:
    tool = begin(containers)
    codes = ["import time; order = []; time.sleep(0.2); order.append(1)", "order.append(2)", "order.append(3); order"]
    results = await asyncio.gather(*[run(tool, code) for code in codes])
    assert results[-1].model_output == "[1, 2, 3]"


async def test_a_cancelled_call_interrupts_the_code(containers: LocalContainers) -> None:
    tool = begin(containers)
    await tell(tool, "steps = 0")
    busy = "open('/mnt/data/begun', 'w').close()\nwhile True: steps += 1"
    running = asyncio.ensure_future(run(tool, busy))
    while not await containers.sandbox.list_files(containers.latest):
        pass
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    first = await tell(tool, "steps")  # it answers: the loop was ended, and the variables are kept
    assert first.isdigit()
    assert first == await tell(tool, "steps")


async def test_written_files_and_figures_are_told_and_cited(containers: LocalContainers) -> None:
    tool = begin(containers)
    assert "[cfile_1 sandbox:/mnt/data/a.csv]" in await tell(tool, "open('/mnt/data/a.csv', 'w').write('1')")
    figure = await run(tool, PYPLOT)
    assert not isinstance(figure.model_output, str)
    assert isinstance(figure.model_output[0], InputText)
    assert "[A figure was shown to the user.]\n[cfile_2 figure]" in figure.model_output[0].text
    assert isinstance(figure.model_output[1], InputImage)
    for restored in (False, True):
        if restored:  # another server continues
            item, tool = past_call(containers.latest), begin(containers)
            tool.restore_output("[cfile_1 sandbox:/mnt/data/a.csv]")
            tool.restore_output(figure.model_output)
            assert await tool.recover([item]) == FOUND
        rewriter = tool.make_rewriter(is_last=True)
        assert rewriter is not None
        cited = rewriter.feed([Text("[a](sandbox:/mnt/data/a.csv)")]) + rewriter.finish()
        found = [delta.annotation for delta in cited if not isinstance(delta, Text)]  # type: ignore[union-attr]
        assert [(one.container_id, one.filename, one.start_index, one.end_index) for one in found] == [  # type: ignore[union-attr]
            (containers.latest, "a.csv", 4, 27), (containers.latest, "cfile_2.png", 0, 0)
        ]  # fmt: skip


async def test_the_container_of_the_latest_call_that_is_alive_is_used_again(containers: LocalContainers) -> None:
    first, second = await containers.add(), await containers.add()
    await tell(begin(containers, container=first), "x = 'first'")
    history: list[InputItem] = [
        past_call("cntr_of_others"),
        past_call(first),
        Message(role="user", content=[]),
        past_call(second),
    ]
    tool = begin(containers)
    await prepare(tool, *history)
    assert "NameError" in await tell(tool, "x")
    containers.expired.add(second)
    tool = begin(containers)
    await prepare(tool, *history)
    assert await tell(tool, "x") == f"{OTHER_CONTAINER}\n'first'"
    assert await tell(tool, "x") == "'first'"
    containers.expired.add(first)
    tool = begin(containers)
    await prepare(tool, *history)
    item = (await run(tool, "1")).item
    assert isinstance(item, CodeInterpreterCall)
    assert item.container_id == containers.latest
    assert len(containers.tenants) == 3


async def test_a_bounded_number_of_containers_is_tried(containers: LocalContainers) -> None:
    used = await containers.add()
    tool = begin(containers)
    await prepare(tool, past_call(used), *[past_call(f"cntr_of_others_{number}") for number in range(MAX_PREVIOUS)])
    await run(tool, "1")
    assert containers.latest != used


async def test_a_server_that_takes_over_says_whether_the_container_is_lost(containers: LocalContainers) -> None:
    used = await containers.add()
    await tell(begin(containers, container=used), "x = 5")
    tool = begin(containers)
    assert await tool.recover([past_call(used)]) == FOUND
    assert await tell(tool, "x") == "5"
    containers.expired.add(used)
    tool = begin(containers)
    tool.restore_output("[cfile_1 sandbox:/mnt/data/a.csv]")
    assert await tool.recover([past_call(used)]) == LOST
    assert await tell(tool, "1") == f"{OTHER_CONTAINER}\n1"
    rewriter = tool.make_rewriter(is_last=True)
    assert rewriter is not None
    assert rewriter.feed([Text("sandbox:/mnt/data/a.csv")]) + rewriter.finish() == [Text("sandbox:/mnt/data/a.csv")]


async def test_a_declared_container_must_exist_and_be_alive(containers: LocalContainers) -> None:
    foreign, expired, own = await containers.add("other"), await containers.add(), await containers.add()
    containers.expired.add(expired)
    for container, error in ((foreign, DeclaredContainerUnknown), (expired, DeclaredContainerExpired)):
        with pytest.raises(error) as caught:
            await begin(containers, container=container).prepare("tools[2]", ())
        assert (caught.value.param, caught.value.status) == ("tools[2].container", 400)
        assert container in caught.value.message
    tool = begin(containers, container=own)
    await prepare(tool, past_call(expired))
    containers.expired.add(own)
    with pytest.raises(ContainerExpired):
        await run(tool, "1")


async def test_files_of_the_declaration_and_of_messages_are_wanted_in_the_container(
    containers: LocalContainers,
) -> None:
    parts: list[MessagePart] = [
        InputFile(file_id="file-2"),
        InputImage(image_url="data:,"),
        InputImage(file_id="file-3"),
    ]
    tool = begin(containers, container=AutoContainer(file_ids=["file-1"]))
    await prepare(tool, Message(role="user", content=[InputText(text="Look."), *parts]))
    (wanted,) = containers.wanted
    assert isinstance(wanted, AutoContainer)
    assert wanted.file_ids == ["file-1", "file-2", "file-3"]


async def test_the_latest_files_with_inline_data_are_put_into_an_automatic_container_once(
    containers: LocalContainers,
) -> None:
    parts: list[MessagePart] = [InputFile(filename=f"{n}.csv", file_data="QQ==") for n in range(MAX_INPUT_FILES + 1)]
    for container in (None, await containers.add()):
        tool = begin(containers, container=container)
        await prepare(tool, Message(role="user", content=parts))
        assert containers.sent == []
        for _ in range(2):
            await run(tool, "1")
        assert containers.sent == ([f"{n + 1}.csv" for n in range(MAX_INPUT_FILES)] if container is None else [])
        containers.sent.clear()


async def test_a_call_has_its_container_in_the_first_turn(containers: LocalContainers) -> None:
    tool = begin(containers, OUTPUTS)
    assert tool.make_rewriter(is_last=True) is None
    await prepare(tool)
    rewriter = tool.make_rewriter(is_last=True)
    assert rewriter is not None
    (started,) = rewriter.feed([CallStarted(0, "code_interpreter", "code_interpreter")])
    assert not containers.tenants  # it is made for the first call
    await run(tool, "1")
    named = CallStarted(0, "code_interpreter", "code_interpreter", containers.latest, lists_outputs=True)
    assert started == named


@pytest.mark.parametrize("code", ["", " \n", "x" * 100_000])
async def test_code_that_is_blank_or_too_long_is_not_run(containers: LocalContainers, code: str) -> None:
    with pytest.raises(InvalidValue):
        await run(begin(containers), code)


async def test_the_failure_of_a_call_has_its_code_and_the_reason(containers: LocalContainers) -> None:
    tool = begin(containers, OUTPUTS)
    failed = tool.make_failed_result(make_call("1 + 1"), EngineFailed("It was late."))
    assert failed.item == CodeInterpreterCall(status="failed", container_id="", code="1 + 1", outputs=[])
    assert failed.model_output == "Error: It was late."


def declare(**fields: Any) -> CodeInterpreterTool:
    (declared,) = decode_fields(model="m", input="hi", tools=[{"type": "code_interpreter", **fields}]).tools
    assert isinstance(declared, CodeInterpreterTool)
    return declared


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({}, 1),
        ({"allowed_callers": ["direct"]}, 1),
        ({"allowed_callers": ["direct", "programmatic"]}, 1),
        ({"allowed_callers": ["programmatic"]}, 0),
    ],
)
def test_code_that_only_programs_may_run_is_not_offered(fields: dict[str, Any], count: int) -> None:
    assert len(make_tool(None).list_functions(declare(**fields))) == count


# For each field of the openai package a declaration, and what the containers are asked for.
FIELDS: dict[str, tuple[dict[str, Any], str | AutoContainer]] = {
    "": ({}, AutoContainer()),
    "type": ({"container": {"type": "auto"}}, AutoContainer()),
    "container": ({"container": "cntr_1"}, "cntr_1"),
    "allowed_callers": ({"container": "cntr_1", "allowed_callers": ["direct"]}, "cntr_1"),
    "container.type": ({"container": {"type": "auto"}}, AutoContainer()),
    "container.file_ids": ({"container": {"type": "auto", "file_ids": ["file-1"]}}, AutoContainer(file_ids=["file-1"])),
    "container.memory_limit": ({"container": {"type": "auto", "memory_limit": "4g"}}, AutoContainer(memory_limit="4g")),
    "container.network_policy": (
        {"container": {"type": "auto", "network_policy": {"type": "disabled"}}},
        AutoContainer(network_policy=NetworkDisabled()),
    ),
}


@pytest.mark.parametrize("name", FIELDS)
async def test_every_field_reaches_the_containers(containers: LocalContainers, name: str) -> None:
    await containers.add()
    fields, wanted = FIELDS[name]
    tool = make_tool(containers).begin(declare(**fields), "tenant", frozenset())
    await prepare(tool)
    assert containers.wanted == [wanted]


@pytest.mark.parametrize(("prefix", "kind"), [("", CodeInterpreterParam), ("container.", AutoParam)])
def test_every_field_of_the_openai_package_is_covered(prefix: str, kind: type) -> None:
    assert {f"{prefix}{name}" for name in get_type_hints(kind)} <= FIELDS.keys()
