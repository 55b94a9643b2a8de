"""The code_interpreter tool on a tool server."""

from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest

from antiphon.core.deltas import Delta, Progress
from antiphon.errors import InvalidValue, UnsupportedParameter
from antiphon.protocol.types.items import CodeImage, CodeInterpreterCall, CodeLogs
from antiphon.protocol.types.parts import InputImage, InputText
from antiphon.protocol.types.tools import AutoContainer, CodeInterpreterTool, NetworkDisabled
from antiphon.sandbox.base import PrintedText
from antiphon.tools.base import ModelToolCall
from antiphon.tools.code_interpreter.response_code import ResponseCode
from antiphon.tools.tool_server.code import CodeSession, ServedCodeInterpreter
from tests.support.media_files import jpeg, png
from tests.tools.tool_server.local_tool_server import make_services, run_tool_server

pytestmark = pytest.mark.anyio


@pytest.fixture
async def tool() -> AsyncIterator[ResponseCode]:
    with run_tool_server() as server:
        built_in = ServedCodeInterpreter(make_services(server.url))
        yield built_in.begin(CodeInterpreterTool(), "tenant", frozenset({"code_interpreter_call.outputs"}))
        await built_in.close()


async def run(tool: ResponseCode, code: str, name: str = "code_interpreter") -> tuple[CodeInterpreterCall, Any]:
    deltas: list[Delta] = []

    async def record(delta: Delta) -> None:
        deltas.append(delta)

    result = await tool.run(ModelToolCall(key=3, id="ci_3", name=name, arguments=code), record)
    assert deltas == [Progress(3, "interpreting")]
    assert isinstance(result.item, CodeInterpreterCall)
    return result.item, result.model_output


async def test_the_text_is_the_output_and_an_exception_is_an_end(tool: ResponseCode) -> None:
    item, text = await run(tool, "print(6 * 7)")
    assert (item.status, item.code, item.outputs, text) == ("completed", "print(6 * 7)", [CodeLogs(logs="42\n")], "42")
    item, text = await run(tool, "1 / 0")
    assert (item.status, text) == ("completed", "ZeroDivisionError: division by zero")
    item, text = await run(tool, "pass")
    assert (item.outputs, text) == ([], "[The code has printed nothing.]")


async def test_a_png_is_a_figure_for_the_client_and_the_model(tool: ResponseCode) -> None:
    item, output = await run(tool, "figure")
    url = "data:image/png;base64," + b64encode(png()).decode()
    assert item.outputs == [CodeLogs(logs="drawn"), CodeImage(url=url)]
    text, image = output
    assert isinstance(text, InputText)
    assert text.text == "drawn\n[A figure was shown to the user.]"
    assert isinstance(image, InputImage)


async def test_other_images_are_described_in_the_text(tool: ResponseCode) -> None:
    blocks = [
        {"type": "image", "mimeType": "image/png", "data": b64encode(jpeg()).decode()},
        {"type": "image", "mimeType": "image/png", "data": "no base64"},
    ]
    assert isinstance(tool.container, CodeSession)
    (printed, _) = tool.container.read_events({"content": blocks})
    assert isinstance(printed, PrintedText)
    assert printed.text.count('"type":"image"') == 2


@pytest.mark.parametrize(
    ("container", "field"),
    [
        ("cntr_1", ""),
        (AutoContainer(file_ids=["file_1"]), ".file_ids"),
        (AutoContainer(memory_limit="1g"), ".memory_limit"),
        (AutoContainer(network_policy=NetworkDisabled()), ".network_policy"),
    ],
)
async def test_a_declaration_of_a_container_is_refused_by_its_field(container: str | AutoContainer, field: str) -> None:
    built_in = ServedCodeInterpreter(make_services("http://127.0.0.1:9"))
    tool = built_in.begin(CodeInterpreterTool(container=container), "tenant", frozenset())
    with pytest.raises(UnsupportedParameter, match="The tool server 'python', which runs this,") as raised:
        await tool.prepare("tools[0]", [])
    assert raised.value.param == f"tools[0].container{field}"


async def test_code_that_is_missing_is_not_sent(tool: ResponseCode) -> None:
    with pytest.raises(InvalidValue, match="There is no code to run"):
        await run(tool, " ")


async def test_code_that_only_programs_may_run_is_not_offered() -> None:
    built_in = ServedCodeInterpreter(make_services("http://127.0.0.1:9"))
    assert built_in.list_functions(CodeInterpreterTool(allowed_callers=["programmatic"])) == ()
