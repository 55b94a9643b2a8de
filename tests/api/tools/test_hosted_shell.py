"""The shell tool of containers through the whole server, in a real sandbox."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, Text
from antiphon.core.prompt import Chunk
from antiphon.engines.fake import FakeEngine, FakeSettings
from tests.api.app import ApiServer, parse_events, run_api
from tests.api.containers.container_api import ContainerApi
from tests.golden.harmony.cases import encode_tokens
from tests.oracles.responses import accumulate, check_event, check_response

pytestmark = pytest.mark.anyio

TOOL = {"type": "shell", "environment": {"type": "container_auto"}}
CODE = {"type": "code_interpreter", "container": {"type": "auto"}}
LINK = "sandbox:/mnt/data/n.csv"


@pytest.fixture
async def server(sandbox_options: dict[str, Any]) -> AsyncIterator[ApiServer]:
    async with asyncio.timeout(120), run_api(**sandbox_options) as server:
        yield server


def make_call(arguments: dict[str, Any], key: int = 0, name: str = "shell") -> list[Delta]:
    return [CallStarted(key, name), CallDelta(key, json.dumps(arguments)), CallDone(key)]


async def create(server: ApiServer, *commands: str, answer: str = "Done.", **fields: Any) -> Any:
    if commands:
        server.engine.says(*make_call({"commands": commands}))
    server.engine.says(Text(answer))
    response = await server.create(**{"tools": [TOOL], **fields})
    check_response(response)
    return response


def last_prompt(server: ApiServer) -> str:
    return repr(server.engine.seen[-1].prompt)


def make_output(stdout: str, stderr: str = "", code: int = 0) -> dict[str, Any]:
    return {"stdout": stdout, "stderr": stderr, "outcome": {"type": "exit", "exit_code": code}}


@pytest.mark.shows("E.21", "E.29")
async def test_commands_run_and_their_output_is_streamed_in_items_of_its_own(server: ApiServer) -> None:
    arguments = {"commands": ["echo 1,2 > n.csv; echo out", "echo err >&2; exit 3"], "max_output_length": 500}
    server.engine.says(*make_call(arguments))
    server.engine.says(Text(f"It is [here]({LINK})."))
    body = {"model": "fake", "input": "?", "tools": [TOOL], "stream": True}
    events = parse_events(await server.post("responses", body))
    for event in events:
        check_event(event)
    names = [event["type"].removeprefix("response.") for event in events]
    command = [f"shell_call_command.{step}" for step in ("added", "delta", "done")]
    assert names[2:16] == [
        "output_item.added", *command, *command, "output_item.done",
        "output_item.added", *["shell_call_output_content.delta", "shell_call_output_content.done"] * 2,
        "output_item.done",
    ]  # fmt: skip
    response = events[-1]["response"]
    call, output, message = response["output"]
    assert call["action"] == {**arguments, "timeout_ms": None}
    assert call["environment"]["type"] == "container_reference"
    assert (call["status"], output["status"], output["call_id"]) == ("completed", "completed", call["call_id"])
    assert output["output"] == [make_output("out\n"), make_output("", "err\n", 3)]
    assert output["max_output_length"] == 500
    assert response["tools"] == [TOOL]
    (citation,) = message["content"][0]["annotations"]
    assert citation["container_id"] == call["environment"]["container_id"]
    assert await ContainerApi(server).read(citation["container_id"], citation["file_id"]) == b"1,2\n"
    assert accumulate(events).output_text == f"It is [here]({LINK})."
    assert f"[exit code 3]\\n[{citation['file_id']} {LINK}]" in last_prompt(server)
    stored = (await server.get(f"responses/{response['id']}")).json()
    assert stored["output"] == response["output"]


async def test_a_command_that_writes_more_files_than_can_be_listed_ends_no_container(server: ApiServer) -> None:
    other = (await ContainerApi(server).create())["id"]
    name = "é" * 120
    folder = "/".join([name] * 4)
    command = f"mkdir -p {folder}; cd {folder}; touch $(seq 9000)"
    (output,) = (await create(server, command))["output"][1]["output"]
    assert output == make_output("", "[8,000 more files were written.]")
    assert [file.path for file in await ContainerApi(server).run(other, "open('a', 'w').close()")] == ["/mnt/data/a"]


@pytest.mark.shows("E.29")
@pytest.mark.parametrize("chain", ["previous_response_id", "conversation", "input"])
async def test_a_continuation_has_the_files_and_sees_the_calls(server: ApiServer, chain: str) -> None:
    conversation = await server.post_ok("conversations", {}) if chain == "conversation" else None
    fields = {"conversation": conversation["id"]} if conversation else {}
    first = await create(server, "echo 41 > n; echo kept", **fields)
    if chain == "previous_response_id":
        fields = {"previous_response_id": first["id"]}
    elif chain == "input":
        fields = {"input": [*first["output"], {"role": "user", "content": "And?"}]}
    second = await create(server, "cat n", **fields)
    assert second["output"][0]["environment"] == first["output"][0]["environment"]
    assert second["output"][1]["output"] == [make_output("41\n")]
    assert "kept\\n\\n[exit code 0]" in last_prompt(server)
    assert "echo 41 > n" in last_prompt(server)


@pytest.mark.shows("E.29")
async def test_the_shell_and_the_code_interpreter_share_a_container(server: ApiServer) -> None:
    server.engine.says(
        *make_call({"commands": ["echo 6 > n"]}),
        *make_call({"code": "int(open('n').read()) * 7"}, 1, "code_interpreter"),
    )
    fields: dict[str, Any] = {"tools": [TOOL, CODE], "include": ["code_interpreter_call.outputs"]}
    response = await create(server, **fields)
    by_type = {item["type"]: item for item in response["output"]}
    container = by_type["code_interpreter_call"]["container_id"]
    assert by_type["shell_call"]["environment"]["container_id"] == container
    later = await create(server, "cat n", previous_response_id=response["id"])
    assert later["output"][0]["environment"]["container_id"] == container
    assert later["output"][1]["output"] == [make_output("6\n")]


async def test_calls_are_limited_and_can_be_required(server: ApiServer) -> None:
    server.engine.says(*make_call({"commands": ["echo 1"]}), *make_call({"commands": ["echo 2 > two"]}, 1))
    response = await create(server, max_tool_calls=1, tool_choice={"type": "shell"})
    statuses = [(item["type"], item["status"]) for item in response["output"]]
    assert statuses == [
        ("shell_call", "completed"), ("shell_call_output", "completed"), ("shell_call", "completed"),
        ("shell_call_output", "incomplete"), ("message", "completed"),
    ]  # fmt: skip
    assert response["output"][3]["output"] == []
    assert "as many tool calls as max_tool_calls allows" in last_prompt(server)
    assert not server.engine.seen[-1].prompt.tools  # type: ignore[union-attr]  # a chat
    assert [tool["function"]["name"] for tool in server.engine.seen[0].prompt.tools] == ["shell"]  # type: ignore[union-attr]  # a chat


async def test_a_call_that_cannot_be_understood_is_answered_with_an_error(server: ApiServer) -> None:
    server.engine.says(*make_call({"run": "ls"}))
    response = await create(server)
    assert [item["type"] for item in response["output"]] == ["shell_call", "shell_call_output", "message"]
    assert response["output"][0]["action"]["commands"] == []
    assert "Error: The arguments of shell do not fit" in last_prompt(server)
    await create(server, previous_response_id=response["id"])
    assert "'content': 'incomplete'" in last_prompt(server)


async def test_other_forms_of_a_call_are_understood_as_for_the_shell_of_a_client(server: ApiServer) -> None:
    server.engine.says(*make_call({"cmd": ["bash", "-lc", "echo $((6 * 7))"], "workdir": "/tmp"}))
    response = await create(server)
    assert response["output"][0]["action"]["commands"] == ["cd /tmp && echo $((6 * 7))"]
    assert response["output"][1]["output"] == [make_output("42\n")]


async def test_cancelling_a_background_response_kills_its_command(server: ApiServer) -> None:
    api = ContainerApi(server)
    container = (await api.create())["id"]
    tool = {"type": "shell", "environment": {"type": "container_reference", "container_id": container}}
    server.engine.says(*make_call({"commands": ["touch begun; while :; do echo >> ticks; done"]}))
    created = await server.create(tools=[tool], background=True)
    while not await api.components.sandbox.list_files(container):
        pass
    cancelled = (await server.post(f"responses/{created['id']}/cancel")).json()
    assert [item["status"] for item in cancelled["output"]] == ["completed", "incomplete"]
    response = await create(server, "wc -l < ticks", "wc -l < ticks", tools=[tool])
    first, second = response["output"][1]["output"]
    assert first == second
    assert response["tools"] == [tool]


@pytest.mark.shows("E.29")
@pytest.mark.parametrize("background", [False, True])
async def test_an_environment_that_cannot_be_had_is_rejected_by_name(server: ApiServer, background: bool) -> None:
    policy = {"type": "allowlist", "allowed_domains": ["x.example"]}
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"type": "container_reference", "container_id": "cntr_0"}, "container_id", "container_not_found"),
        ({"type": "container_auto", "file_ids": ["file-0"]}, "file_ids[0]", "invalid_value"),
        ({"type": "container_auto", "memory_limit": "64g"}, "memory_limit", "invalid_value"),
        ({"type": "container_auto", "network_policy": policy}, "network_policy", "unsupported_parameter"),
        (
            {"type": "container_auto", "skills": [{"type": "skill_reference", "skill_id": "s"}]},
            "skills[0]",
            "invalid_value",
        ),
    ]
    for environment, param, code in cases:
        tools = [CODE, {"type": "shell", "environment": environment}]
        body = {"model": "fake", "input": "hi", "tools": tools, "background": background}
        answer = await server.post("responses", body)
        assert (answer.status, answer.error["code"]) == (400, code)
        assert answer.error["param"] == f"tools[1].environment.{param}"
    assert not server.engine.seen


@pytest.mark.shows("E.26")
@pytest.mark.parametrize(("settings", "flag"), [({"sandbox": "none"}, "--sandbox"), ({"disable_store": True}, "store")])
async def test_the_tool_is_rejected_where_commands_are_not_run(settings: dict[str, Any], flag: str) -> None:
    async with run_api(**settings) as server:
        answer = await server.post("responses", {"model": "fake", "input": "hi", "tools": [TOOL], "store": False})
        assert (answer.status, answer.error["param"]) == (400, "tools[0]")
        assert flag in answer.error["message"]


async def test_a_shell_of_the_client_stays_the_clients(server: ApiServer) -> None:
    for tool in ({"type": "shell"}, {"type": "shell", "environment": {"type": "local"}}):
        server.engine.says(*make_call({"commands": ["ls"]}))
        response = await server.create(tools=[tool])
        assert [item["type"] for item in response["output"]] == ["shell_call"]
        assert response["output"][0]["environment"] == {"type": "local"}


@pytest.mark.shows("D2.2", "E.29")
async def test_gpt_oss_calls_the_shell_by_the_name_it_was_trained_with(sandbox_options: dict[str, Any]) -> None:
    engine = FakeEngine(FakeSettings(level="harmony"))
    async with asyncio.timeout(120), run_api(engine=engine, **sandbox_options) as server:
        arguments = json.dumps({"cmd": ["bash", "-lc", "echo $((6 * 7))"]})
        outputs = (
            f"<|channel|>analysis to=container.exec code<|message|>{arguments}<|call|>",
            "<|channel|>final<|message|>42.<|return|>",
        )
        for output in outputs:
            engine.says(*[Chunk(tokens=(token,)) for token in encode_tokens(output)])
        response = await server.create(tools=[TOOL])
        assert [item["type"] for item in response["output"]] == ["shell_call", "shell_call_output", "message"]
        assert response["output"][1]["output"] == [make_output("42\n")]
