"""The openai package and approvals that outlive their server: what was allowed is done once, by whoever comes next."""

import signal
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.support.server_process import Live, patiently, serving
from tests.support.services import Postgres
from tests.tools.mcp.sum_server import Sums, adding


def client(live: Live) -> OpenAI:
    return OpenAI(base_url=live.v1, api_key="unused", max_retries=0, timeout=60)


def killed(live: Live) -> None:
    live.process.send_signal(signal.SIGKILL)
    live.process.wait(60)


def answered(sdk: OpenAI, sums: Sums, first: Any, asked: Any, background: bool = False) -> Any:
    return sdk.responses.create(
        background=background,
        model="fake",
        previous_response_id=first.id,
        tools=[tool(sums)],
        input=[{"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": True}],
    )


def tool(sums: Sums) -> Any:
    return {"type": "mcp", "server_label": "sums", "server_url": sums.url, "require_approval": "always"}


@pytest.mark.shows("E.9")
def test_what_was_allowed_is_done_once_over_two_kills(tmp_path: Path) -> None:
    flags = ("--engine", "fake", "--store", str(tmp_path / "my.db"))
    with adding() as sums:
        with serving(*flags) as live, client(live) as sdk:
            first = sdk.responses.create(model="fake", input="hi", tools=[tool(sums)])
            [asked] = [item for item in first.output if item.type == "mcp_approval_request"]
            killed(live)
        with serving(*flags) as live, client(live) as sdk:
            then = answered(sdk, sums, first, asked)
            assert then.output_text == "The tool said: 0 + 0 = 0"
            killed(live)
        with serving(*flags) as live, client(live) as sdk:
            with pytest.raises(openai.BadRequestError) as refused:
                answered(sdk, sums, first, asked)
            assert refused.value.code == "approval_already_used"
            assert refused.value.param == "input[0].approval_request_id"
            more = sdk.responses.create(
                model="fake", input="and?", previous_response_id=then.id, tools=[tool(sums)], tool_choice="none"
            )
            assert more.status == "completed"
        assert sums.calls == [(0, 0)]


@pytest.mark.shows("E.9")
def test_what_was_being_done_when_a_server_was_killed_is_never_done_again(tmp_path: Path) -> None:
    flags = ("--engine", "fake", "--store", str(tmp_path / "my.db"), "--lease-seconds", "1")
    with adding() as sums:
        with serving(*flags) as live, client(live) as sdk:
            first = sdk.responses.create(model="fake", input="hi", tools=[tool(sums)])
            [asked] = [item for item in first.output if item.type == "mcp_approval_request"]
            sums.answers.clear()
            then = answered(sdk, sums, first, asked, background=True)
            assert sums.called.wait(20)
            killed(live)
        with serving(*flags) as live, client(live) as sdk:
            for _ in patiently():
                then = sdk.responses.retrieve(then.id)
                if then.status not in ("queued", "in_progress"):
                    break
            [call] = [item for item in then.output if item.type == "mcp_call"]
            assert (then.status, call.status) == ("completed", "failed"), then
            assert "not known whether it took effect" in str(call.error)
            sums.answers.set()
            with pytest.raises(openai.BadRequestError) as refused:
                answered(sdk, sums, first, asked)
            assert refused.value.code == "approval_already_used"
            question = sdk.responses.create(model="fake", input="?", previous_response_id=then.id, tools=[tool(sums)])
            assert question.status == "completed"
        assert sums.calls == [(0, 0)]


@pytest.mark.shows("E.9")
@pytest.mark.needs("postgresql")
def test_what_one_asked_another_one_does(postgres: Postgres) -> None:
    with (
        postgres.database() as url,
        adding() as sums,
        serving("--engine", "fake", "--store", url) as one,
        serving("--engine", "fake", "--store", url) as other,
        client(one) as first_sdk,
        client(other) as other_sdk,
    ):
        first = first_sdk.responses.create(model="fake", input="hi", tools=[tool(sums)])
        [asked] = [item for item in first.output if item.type == "mcp_approval_request"]
        assert answered(other_sdk, sums, first, asked).output_text == "The tool said: 0 + 0 = 0"
        with pytest.raises(openai.BadRequestError) as refused:
            answered(first_sdk, sums, first, asked)
        assert refused.value.code == "approval_already_used"
        assert sums.calls == [(0, 0)]
