"""Sessions of responses with a tool server, and how it fails."""

import asyncio
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.config import Config
from antiphon.config.tool_settings import McpServerSpec
from antiphon.core.deltas import Delta
from antiphon.errors import InvalidValue, McpFailed, UnsupportedParameter
from antiphon.protocol.types.items import CodeInterpreterCall
from antiphon.protocol.types.tools import CodeInterpreterTool, Credentials, McpTool
from antiphon.tools.base import ModelToolCall, ToolResult, ToolServices
from antiphon.tools.code_interpreter.response_code import ResponseCode
from antiphon.tools.tool_server.code import ServedCodeInterpreter
from antiphon.tools.tool_server.server import find_session
from tests.egress.hosts import make_egress_client
from tests.tools.tool_server import local_tool_server
from tests.tools.tool_server.local_tool_server import LocalToolServer, make_services, run_tool_server

pytestmark = pytest.mark.anyio

TOOL = CodeInterpreterTool()


@pytest.fixture
def server() -> Iterator[LocalToolServer]:
    with run_tool_server() as found:
        yield found


async def ignore(delta: Delta) -> None:
    pass


async def run(tool: ResponseCode, code: str) -> ToolResult:
    return await tool.run(ModelToolCall(key=0, id="ci_1", name="code_interpreter", arguments=code), ignore)


def begin(built_in: ServedCodeInterpreter, tenant: str = "tenant") -> ResponseCode:
    return built_in.begin(TOOL, tenant, frozenset())


def past_call(container_id: str) -> CodeInterpreterCall:
    return CodeInterpreterCall(id="ci_0", status="completed", container_id=container_id, code="", outputs=None)


async def test_a_session_is_continued_along_a_conversation_by_the_same_tenant_alone(server: LocalToolServer) -> None:
    built_in = ServedCodeInterpreter(make_services(server.url))
    first, later, foreign, other = begin(built_in), begin(built_in), begin(built_in, "stranger"), begin(built_in)
    await first.prepare("tools[0]", [])
    await run(first, "x = 41")
    for tool in (later, foreign):
        await tool.prepare("tools[0]", [past_call("cntr_older"), past_call(first.container.id)])
        assert tool.container.id == first.container.id
    assert (await run(later, "print(x + 1)")).model_output == "42"
    assert "NameError" in str((await run(foreign, "print(x)")).model_output)
    assert "NameError" in str((await run(other, "print(x)")).model_output)
    sessions = server.sessions()
    assert sessions[0] == sessions[1]
    assert len({*sessions}) == 3
    assert first.container.id not in sessions
    await built_in.close()


async def test_a_server_that_takes_a_response_over_continues_its_session(server: LocalToolServer) -> None:
    built_in = ServedCodeInterpreter(make_services(server.url))
    tool = begin(built_in)
    await tool.prepare("tools[0]", [])
    assert await tool.recover([past_call("cntr_taken_over")]) == ""
    await run(tool, "1")
    assert tool.container.id == "cntr_taken_over"
    await built_in.close()


async def test_headers_of_the_operator_and_of_the_client_are_sent(server: LocalToolServer) -> None:
    built_in = ServedCodeInterpreter(make_services(server.url, token="operators-own"))
    tool = begin(built_in)
    find_session(tool).credentials = Credentials(headers={"X-Team": "blue"}, authorization="the-clients")
    await run(tool, "1")
    _, _, headers = server.calls[0]
    assert (headers["authorization"], headers["x-team"]) == ("Bearer operators-own", "blue")
    await built_in.close()


async def test_a_server_that_does_not_answer_fails_the_call_within_the_timeout(server: LocalToolServer) -> None:
    built_in = ServedCodeInterpreter(make_services(server.url, tool_timeout=0.2))
    server.released.clear()
    async with asyncio.timeout(20):
        with pytest.raises(McpFailed, match="'python' did not answer in time"):
            await run(begin(built_in), "1")
    assert server.called.is_set()
    await built_in.close()


async def test_a_server_that_is_not_there_or_lacks_the_function_fails_the_call(server: LocalToolServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    gone = ServedCodeInterpreter(make_services(url))
    with pytest.raises(McpFailed):
        await run(begin(gone), "1")
    await gone.close()
    server.server.remove_tool("python")
    poor = ServedCodeInterpreter(make_services(server.url))
    with pytest.raises(McpFailed, match="has no tool 'python'"):
        await run(begin(poor), "1")
    await poor.close()


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"require_approval": "always"}, UnsupportedParameter, "require_approval"),
        ({"allowed_tools": ["python"]}, UnsupportedParameter, "allowed_tools"),
        ({"server_description": "?"}, UnsupportedParameter, "server_description"),
        ({"headers": {"X-Session-Id": "1"}}, InvalidValue, "headers"),
        ({"headers": {"Host": "x"}}, InvalidValue, "headers"),
    ],
)
async def test_only_headers_can_be_given_for_a_tool_server(
    fields: dict[str, Any], error: type[Exception], param: str
) -> None:
    built_in = ServedCodeInterpreter(make_services("http://127.0.0.1:9"))
    with pytest.raises(error) as raised:
        built_in.check_credentials(McpTool(server_label="python", **fields), [TOOL], "tools[1]")
    assert getattr(raised.value, "param", "") == f"tools[1].{param}"
    with pytest.raises(InvalidValue, match="is not declared"):
        built_in.check_credentials(McpTool(server_label="python"), [], "tools[1]")


async def test_a_program_runs_for_each_session_and_takes_no_headers() -> None:
    specs = (McpServerSpec(label="python", command=sys.executable, args=("-m", local_tool_server.__name__)),)
    config = Config.from_settings(tool_servers=specs)
    built_in = ServedCodeInterpreter(ToolServices(config=config, egress=make_egress_client()))
    first, second = begin(built_in), begin(built_in)
    await run(first, "x = 41")
    assert (await run(first, "print(x + 1)")).model_output == "42"
    assert "NameError" in str((await run(second, "print(x)")).model_output)
    with pytest.raises(InvalidValue, match="is a program") as raised:
        built_in.check_credentials(McpTool(server_label="python", authorization="key"), [TOOL], "tools[1]")
    assert raised.value.param == "tools[1].authorization"
    await built_in.close()


async def test_a_server_of_the_older_transport_is_used() -> None:
    with run_tool_server("sse") as server:
        built_in = ServedCodeInterpreter(make_services(server.url))
        tool = begin(built_in)
        await run(tool, "x = 41")
        assert (await run(tool, "print(x + 1)")).model_output == "42"
        assert len({*server.sessions()}) == 1
        await built_in.close()


async def test_the_operator_describes_the_tool_to_models(server: LocalToolServer) -> None:
    services = make_services(server.url, description="Has torch.")
    assert [one.description for one in ServedCodeInterpreter(services).list_functions(TOOL)] == ["Has torch."]
