"""The `openai` package with approvals of MCP calls and of code that outlive their server: an approved call runs once,
on whichever server receives the approval.
"""

import signal
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.support.server_process import ServerProcess, repeat_until_timeout, run_server
from tests.support.services import Postgres
from tests.tools.mcp.sum_server import SumServer, run_sum_server
from tests.tools.tool_server.local_tool_server import LocalToolServer, run_tool_server

pytestmark = pytest.mark.slow

CODE: Any = {"type": "code_interpreter", "container": {"type": "auto"}}
SHELL: Any = {"type": "shell", "environment": {"type": "container_auto"}}


def make_client(server: ServerProcess) -> OpenAI:
    return OpenAI(base_url=server.v1, api_key="unused", max_retries=0, timeout=60)


def kill(server: ServerProcess) -> None:
    server.process.send_signal(signal.SIGKILL)
    server.process.wait(60)


def send_approval(sdk: OpenAI, sums: SumServer, first: Any, approval_request: Any, background: bool = False) -> Any:
    return sdk.responses.create(
        background=background,
        model="fake",
        previous_response_id=first.id,
        tools=[mcp_tool(sums)],
        input=[{"type": "mcp_approval_response", "approval_request_id": approval_request.id, "approve": True}],
    )


def mcp_tool(sums: SumServer) -> Any:
    return {"type": "mcp", "server_label": "sums", "server_url": sums.url, "require_approval": "always"}


@pytest.mark.shows("E.9")
def test_an_approved_call_runs_once_across_two_kills(tmp_path: Path) -> None:
    flags = ("--engine", "fake", "--store", str(tmp_path / "my.db"))
    with run_sum_server() as sums:
        with run_server(*flags) as server, make_client(server) as sdk:
            first = sdk.responses.create(model="fake", input="hi", tools=[mcp_tool(sums)])
            [approval_request] = [item for item in first.output if item.type == "mcp_approval_request"]
            kill(server)
        with run_server(*flags) as server, make_client(server) as sdk:
            second = send_approval(sdk, sums, first, approval_request)
            assert second.output_text == "The tool said: 0 + 0 = 0"
            kill(server)
        with run_server(*flags) as server, make_client(server) as sdk:
            with pytest.raises(openai.BadRequestError) as refused:
                send_approval(sdk, sums, first, approval_request)
            assert refused.value.code == "approval_already_used"
            assert refused.value.param == "input[0].approval_request_id"
            more = sdk.responses.create(
                model="fake", input="and?", previous_response_id=second.id, tools=[mcp_tool(sums)], tool_choice="none"
            )
            assert more.status == "completed"
        assert sums.calls == [(0, 0)]


@pytest.mark.shows("E.9")
def test_a_call_interrupted_by_a_kill_is_never_repeated(tmp_path: Path) -> None:
    flags = ("--engine", "fake", "--store", str(tmp_path / "my.db"), "--lease-seconds", "1")
    with run_sum_server() as sums:
        with run_server(*flags) as server, make_client(server) as sdk:
            first = sdk.responses.create(model="fake", input="hi", tools=[mcp_tool(sums)])
            [approval_request] = [item for item in first.output if item.type == "mcp_approval_request"]
            sums.released.clear()
            second = send_approval(sdk, sums, first, approval_request, background=True)
            assert sums.called.wait(20)
            kill(server)
        with run_server(*flags) as server, make_client(server) as sdk:
            for _ in repeat_until_timeout():
                second = sdk.responses.retrieve(second.id)
                if second.status not in ("queued", "in_progress"):
                    break
            [call] = [item for item in second.output if item.type == "mcp_call"]
            assert (second.status, call.status) == ("completed", "failed"), second
            assert "not known whether it took effect" in str(call.error)
            sums.released.set()
            with pytest.raises(openai.BadRequestError) as refused:
                send_approval(sdk, sums, first, approval_request)
            assert refused.value.code == "approval_already_used"
            question = sdk.responses.create(
                model="fake", input="?", previous_response_id=second.id, tools=[mcp_tool(sums)]
            )
            assert question.status == "completed"
        assert sums.calls == [(0, 0)]


@pytest.mark.shows("E.9")
@pytest.mark.needs("postgresql")
def test_another_replica_runs_the_approved_call(postgres: Postgres) -> None:
    with (
        postgres.temporary_database() as url,
        run_sum_server() as sums,
        run_server("--engine", "fake", "--store", url) as one,
        run_server("--engine", "fake", "--store", url) as other,
        make_client(one) as first_sdk,
        make_client(other) as other_sdk,
    ):
        first = first_sdk.responses.create(model="fake", input="hi", tools=[mcp_tool(sums)])
        [approval_request] = [item for item in first.output if item.type == "mcp_approval_request"]
        assert send_approval(other_sdk, sums, first, approval_request).output_text == "The tool said: 0 + 0 = 0"
        with pytest.raises(openai.BadRequestError) as refused:
            send_approval(first_sdk, sums, first, approval_request)
        assert refused.value.code == "approval_already_used"
        assert sums.calls == [(0, 0)]


def make_flags(folder: Path, tools: LocalToolServer) -> tuple[str, ...]:
    pairs = f"python={tools.url},container={tools.url}"
    approval = ("--code-require-approval", "always", "--tool-server", pairs)
    return ("--engine", "fake", "--store", str(folder / "my.db"), "--lease-seconds", "1", *approval)


def approve_code(sdk: OpenAI, tool: Any, first: Any, background: bool = False) -> Any:
    [request] = [item for item in first.output if item.type == "mcp_approval_request"]
    return sdk.responses.create(
        background=background,
        model="fake",
        previous_response_id=first.id,
        tools=[tool],
        tool_choice="auto" if background else "none",
        input=[{"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}],
    )


@pytest.mark.shows("E.31")
@pytest.mark.parametrize("tool", [CODE, SHELL], ids=["code", "shell"])
def test_approved_code_runs_once_across_two_kills(tmp_path: Path, tool: Any) -> None:
    with run_tool_server() as tools:
        flags = make_flags(tmp_path, tools)
        with run_server(*flags) as server, make_client(server) as sdk:
            first = sdk.responses.create(model="fake", input="hi", tools=[tool])
            assert first.output[-1].type == "mcp_approval_request"
            assert tools.calls == []
            kill(server)
        with run_server(*flags) as server, make_client(server) as sdk:
            second = approve_code(sdk, tool, first)
            assert second.output[0].type in ("code_interpreter_call", "shell_call")
            assert second.output[-1].type == "message"
            kill(server)
        with run_server(*flags) as server, make_client(server) as sdk:
            with pytest.raises(openai.BadRequestError) as refused:
                approve_code(sdk, tool, first)
            assert refused.value.code == "approval_already_used"
        assert len(tools.calls) == 1


@pytest.mark.shows("E.31")
@pytest.mark.parametrize("tool", [CODE, SHELL], ids=["code", "shell"])
def test_approved_code_interrupted_by_a_kill_is_never_repeated(tmp_path: Path, tool: Any) -> None:
    with run_tool_server() as tools:
        flags = make_flags(tmp_path, tools)
        with run_server(*flags) as server, make_client(server) as sdk:
            first = sdk.responses.create(model="fake", input="hi", tools=[tool])
            tools.released.clear()
            second = approve_code(sdk, tool, first, background=True)
            assert tools.called.wait(20)
            kill(server)
        with run_server(*flags) as server, make_client(server) as sdk:
            for _ in repeat_until_timeout():
                second = sdk.responses.retrieve(second.id)
                if second.status not in ("queued", "in_progress"):
                    break
            ended = [item for item in second.output if item.type in ("code_interpreter_call", "shell_call_output")]
            assert [item.status for item in ended] == ["failed" if tool is CODE else "incomplete"], second
            assert "not known whether it took effect" in second.output_text
            with pytest.raises(openai.BadRequestError) as refused:
                approve_code(sdk, tool, first)
            assert refused.value.code == "approval_already_used"
        assert len(tools.calls) == 1
