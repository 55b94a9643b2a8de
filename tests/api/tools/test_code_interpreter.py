"""code_interpreter through the whole server, in a real sandbox: the model writes code, which runs in a container."""

import asyncio
import json
import re
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, Text
from antiphon.core.images import read_image_info
from antiphon.core.prompt import Chunk, TokenPrompt
from antiphon.engines.fake import FakeEngine, FakeSettings
from tests.api.app import ApiServer, parse_events, run_api
from tests.api.containers.container_api import ContainerApi
from tests.golden.harmony.cases import decode_tokens, encode_tokens
from tests.oracles.responses import accumulate, check_event, check_response
from tests.support.media_files import png
from tests.support.sandboxes import PACKAGES_PYTHON, keep_sandbox
from tests.tools.code_interpreter.local_containers import PYPLOT
from tests.transport.websocket.ws_client import open_websocket

pytestmark = pytest.mark.anyio

TOOL = {"type": "code_interpreter", "container": {"type": "auto"}}
OUTPUTS = "code_interpreter_call.outputs"
CSV = "x = 41\nopen('/mnt/data/numbers.csv', 'w').write('1,2')"
FIGURE = "data:image/png;base64," + b64encode(png()).decode()
LINK = "sandbox:/mnt/data/numbers.csv"


@pytest.fixture
async def server(sandbox_options: dict[str, Any]) -> AsyncIterator[ApiServer]:
    async with asyncio.timeout(120), run_api(**sandbox_options) as server:
        yield server


@pytest.fixture
def packages_options() -> Iterator[dict[str, Any]]:
    """Settings of a server whose code has numpy and matplotlib."""
    if not PACKAGES_PYTHON.exists():
        pytest.skip("download: `make sandbox-packages` installs numpy, pandas, matplotlib and pillow")
    with keep_sandbox("auto", str(PACKAGES_PYTHON)) as found:
        if isinstance(found, str):
            pytest.skip(f"permission: no sandbox: {found}")
        yield {"sandbox_folder": found.folder, "sandbox_python": found.python}


def make_calls(*codes: str) -> list[Delta]:
    """Return the calls of one turn; their arguments arrive in pieces of four characters."""
    deltas: list[Delta] = []
    for key, code in enumerate(codes):
        arguments = json.dumps({"code": code})
        pieces = [arguments[at : at + 4] for at in range(0, len(arguments), 4)]
        deltas += [CallStarted(key, "code_interpreter"), *[CallDelta(key, one) for one in pieces], CallDone(key)]
    return deltas


def queue_turns(server: ApiServer, *codes: str, answer: str = "Done.") -> None:
    for code in codes:
        server.engine.says(*make_calls(code))
    server.engine.says(Text(answer[: len(answer) // 2]), Text(answer[len(answer) // 2 :]))


async def create(server: ApiServer, *codes: str, answer: str = "Done.", **fields: Any) -> Any:
    queue_turns(server, *codes, answer=answer)
    response = await server.create(**{"tools": [TOOL], **fields})
    check_response(response)
    return response


async def finish(server: ApiServer, created: Any) -> Any:
    """Wait for a background response."""
    events = parse_events(await server.get(f"responses/{created['id']}?stream=true"))
    return events[-1]["response"]


def last_prompt(server: ApiServer) -> str:
    return repr(server.engine.seen[-1].prompt)


@pytest.mark.shows("E.18", "E.19", "E.21", "A4.8")
@pytest.mark.parametrize("include", [[], [OUTPUTS]], ids=["hidden", "included"])
async def test_code_is_streamed_run_and_its_file_cited(server: ApiServer, include: list[str]) -> None:
    queue_turns(server, CSV, answer=f"They are [here]({LINK}).")
    body = {"model": "fake", "input": "?", "tools": [TOOL], "stream": True, "include": include}
    events = parse_events(await server.post("responses", body))
    for event in events:
        check_event(event)
    names = [event["type"].removeprefix("response.") for event in events]
    deltas = [event["delta"] for event in events if event["type"].endswith("code.delta")]
    assert "".join(deltas) == CSV
    assert len(deltas) > 5
    assert [name for name in names[2:] if "delta" not in name][:6] == [
        "output_item.added",
        "code_interpreter_call.in_progress",
        "code_interpreter_call_code.done",
        "code_interpreter_call.interpreting",
        "code_interpreter_call.completed",
        "output_item.done",
    ]
    assert names[-6:-1] == [
        "output_text.delta", "output_text.annotation.added", "output_text.done", "content_part.done",
        "output_item.done",
    ]  # fmt: skip
    added = events[2]["item"]
    call, message = events[-1]["response"]["output"]
    assert (added["code"], added["outputs"]) == ("", [] if include else None)
    assert added["container_id"] == call["container_id"]
    assert call["outputs"] == ([{"type": "logs", "logs": "3\n"}] if include else None)
    (citation,) = message["content"][0]["annotations"]
    text = message["content"][0]["text"]
    assert text[citation["start_index"] : citation["end_index"]] == LINK
    assert (citation["type"], citation["filename"]) == ("container_file_citation", "numbers.csv")
    assert accumulate(events).output_text == text
    api = ContainerApi(server)
    assert await api.read(citation["container_id"], citation["file_id"]) == b"1,2"
    assert f"[{citation['file_id']} {LINK}]" in last_prompt(server)


@pytest.mark.shows("E.18")
@pytest.mark.parametrize("chain", ["previous_response_id", "conversation", "input"])
async def test_a_continuation_has_the_variables_and_sees_the_calls(server: ApiServer, chain: str) -> None:
    conversation = await server.post_ok("conversations", {}) if chain == "conversation" else None
    fields = {"conversation": conversation["id"]} if conversation else {}
    first = await create(server, CSV, answer=LINK, include=[OUTPUTS], **fields)
    if chain == "previous_response_id":
        fields = {"previous_response_id": first["id"]}
    elif chain == "input":
        fields = {"input": [*first["output"], {"role": "user", "content": "And?"}]}
    again = f"{LINK} as before."
    second = await create(
        server, "x + 1", answer=again, include=[OUTPUTS], tools=[{"type": "code_interpreter"}], **fields
    )
    cited = [response["output"][1]["content"][0]["annotations"][0]["file_id"] for response in (first, second)]
    assert cited[0] == cited[1]
    assert second["output"][0]["container_id"] == first["output"][0]["container_id"]
    assert second["output"][0]["outputs"] == [{"type": "logs", "logs": "42\n"}]
    assert second["tools"] == [TOOL]
    assert "x = 41" in last_prompt(server)
    assert "'content': '3\\n'" in last_prompt(server)


async def test_a_container_is_made_only_for_code_and_its_lack_is_told_to_the_model(
    sandbox_options: dict[str, Any],
) -> None:
    async with asyncio.timeout(120), run_api(**sandbox_options, containers_max_entries=1) as server:
        for _ in range(3):
            await create(server)
        assert (await server.get("containers")).json()["data"] == []
        first = await create(server, "1")
        assert (await create(server, "2"))["output"][0]["status"] == "completed"  # the idle container gives way
        again = await create(server, "3", previous_response_id=first["id"])
        assert again["output"][0]["container_id"] != first["output"][0]["container_id"]
        assert "This ran in another container" in last_prompt(server)
        await ContainerApi(server).create()
        response = await create(server, "4")
        assert [item["status"] for item in response["output"]] == ["failed", "completed"]
        assert "Error: At most 1 containers can run" in last_prompt(server)


@pytest.mark.shows("A4.8")
async def test_outputs_are_returned_only_if_they_are_included(server: ApiServer) -> None:
    response = await create(server, "print('open')", include=[OUTPUTS])
    path = f"responses/{response['id']}"
    assert (await server.get(path)).json()["output"][0]["outputs"] is None
    shown = (await server.get(f"{path}?include={OUTPUTS}")).json()["output"][0]["outputs"]
    assert shown == [{"type": "logs", "logs": "open\n"}]


@pytest.mark.shows("E.18")
@pytest.mark.parametrize("chain", ["previous_response_id", "conversation"])
async def test_the_model_sees_outputs_again_that_its_client_has_not_included(server: ApiServer, chain: str) -> None:
    conversation = await server.post_ok("conversations", {}) if chain == "conversation" else None
    fields = {"conversation": conversation["id"]} if conversation else {}
    first = await create(server, "print('first')", PYPLOT + "\nprint('second')", **fields)
    assert [item.get("outputs") for item in first["output"]] == [None, None, None]
    fields = fields or {"previous_response_id": first["id"]}
    second = await create(server, "print('third')", **fields)
    assert all(f"'content': '{word}" in last_prompt(server) for word in ("first", "second", "third"))
    assert FIGURE not in last_prompt(server)
    await server.delete(f"responses/{first['id']}")
    await create(server, **(fields if conversation else {"previous_response_id": second["id"]}))
    assert "'content': 'third" in last_prompt(server)
    assert "'content': '[The output of this code is not shown again.]'" in last_prompt(server)


@pytest.mark.shows("E.19")
async def test_a_figure_is_an_output_and_cited_although_nobody_links_it(server: ApiServer) -> None:
    response = await create(server, PYPLOT, include=[OUTPUTS])
    call, message = response["output"]
    assert call["outputs"] == [{"type": "image", "url": FIGURE}]
    (citation,) = message["content"][0]["annotations"]
    assert (citation["start_index"], citation["end_index"]) == (0, 0)
    assert citation["filename"] == f"{citation['file_id']}.png"
    assert await ContainerApi(server).read(citation["container_id"], citation["file_id"]) == png()
    assert FIGURE in last_prompt(server)  # the fake model sees images
    await create(server, previous_response_id=response["id"])
    assert FIGURE not in last_prompt(server)


@pytest.mark.shows("E.19")
async def test_a_plot_of_matplotlib_opens_as_a_png(packages_options: dict[str, Any]) -> None:
    code = "import numpy as np, matplotlib.pyplot as plt\nplt.plot(np.sin(np.arange(100) / 10))\nplt.savefig('s.png')"
    async with asyncio.timeout(120), run_api(**packages_options) as server:
        response = await create(server, code, answer="It is sandbox:/mnt/data/s.png", include=[OUTPUTS])
        call, message = response["output"]
        shown = b64decode(call["outputs"][0]["url"].removeprefix("data:image/png;base64,"))
        assert (read_image_info(shown).width, read_image_info(shown).height) == (640, 480)
        saved, figure = message["content"][0]["annotations"]
        assert read_image_info(await ContainerApi(server).read(saved["container_id"], saved["file_id"])).width == 640
        assert await ContainerApi(server).read(figure["container_id"], figure["file_id"]) == shown


@pytest.mark.shows("E.19")
async def test_files_of_the_declaration_and_of_messages_are_in_the_container(server: ApiServer) -> None:
    api = ContainerApi(server)
    declared, sent = await api.store_file(b"1", "a.csv"), await api.store_file(b"two", "b.txt")
    tool = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": [declared]}}
    parts = [{"type": "input_file", "file_id": sent}, {"type": "input_text", "text": "Read."}]
    code = f"[open(f'/mnt/data/{{name}}').read() for name in ('{declared}-a.csv', '{sent}-b.txt')]"
    response = await create(server, code, tools=[tool], include=[OUTPUTS], input=[{"role": "user", "content": parts}])
    assert response["output"][0]["outputs"] == [{"type": "logs", "logs": "['1', 'two']\n"}]
    assert response["tools"] == [tool]


@pytest.mark.shows("E.19")
@pytest.mark.parametrize("kind", ["code_interpreter", "shell"])
async def test_a_file_with_inline_data_is_in_the_container_and_the_model_is_told_where(
    server: ApiServer, kind: str
) -> None:
    api = ContainerApi(server)
    stored = await api.store_file(b"two", "b.txt")
    data = "data:text/csv;base64," + b64encode(b"a,b").decode()
    parts = [
        {"type": "input_file", "file_data": data, "filename": "../a.csv"},
        {"type": "input_file", "file_id": stored},
        {"type": "input_text", "text": "Read."},
    ]
    fields: dict[str, Any] = {"tools": [TOOL, {"type": "shell", "environment": {"type": "container_auto"}}]}
    response = await create(server, input=[{"role": "user", "content": parts}], **fields)
    inline, by_id = re.findall(r'name="[ab]\.\w+" path="(/mnt/data/[^"]+)"', last_prompt(server))
    assert inline.endswith("-.._a.csv")
    assert by_id == f"/mnt/data/{stored}-b.txt"
    if kind == "shell":
        arguments = json.dumps({"commands": [f"cat {inline} {by_id}"]})
        server.engine.says(CallStarted(0, "shell"), CallDelta(0, arguments), CallDone(0))
        response = await create(server, previous_response_id=response["id"], **fields)
        assert response["output"][1]["output"][0]["stdout"] == "a,btwo"
        return
    code = f"open('{inline}').read() + open('{by_id}').read()"
    response = await create(server, code, previous_response_id=response["id"], include=[OUTPUTS])
    assert response["output"][0]["outputs"] == [{"type": "logs", "logs": "'a,btwo'\n"}]
    changed = await create(server, f"open('{inline}', 'w').write('mine')", previous_response_id=response["id"])
    response = await create(server, f"open('{inline}').read()", previous_response_id=changed["id"], include=[OUTPUTS])
    assert response["output"][0]["outputs"] == [{"type": "logs", "logs": "'mine'\n"}]  # it is written once
    listed = (await server.get(f"containers/{response['output'][0]['container_id']}/files")).json()["data"]
    assert sorted(file["path"] for file in listed) == sorted([inline, by_id])


async def test_parallel_calls_run_in_their_order(server: ApiServer) -> None:
    server.engine.says(*make_calls("import time\ntime.sleep(0.2)\norder = [1]", "order += [2]", "order + [3]"))
    response = await create(server, include=[OUTPUTS])
    assert [item["type"] for item in response["output"]] == ["code_interpreter_call"] * 3 + ["message"]
    assert response["output"][2]["outputs"] == [{"type": "logs", "logs": "[1, 2, 3]\n"}]


async def test_calls_are_limited_and_can_be_required(server: ApiServer) -> None:
    server.engine.says(*make_calls("1", "2"))
    choice = {"type": "code_interpreter"}
    response = await create(server, max_tool_calls=1, tool_choice=choice, include=[OUTPUTS])
    assert [item["status"] for item in response["output"]] == ["completed", "failed", "completed"]
    assert response["output"][1]["code"] == "2"
    assert "as many tool calls as max_tool_calls allows" in last_prompt(server)


async def test_code_runs_over_a_websocket_and_in_the_background(server: ApiServer) -> None:
    queue_turns(server, CSV)
    async with open_websocket(server.app) as client:
        assert (await client.create(tools=[TOOL]))["output"][0]["status"] == "completed"
    queue_turns(server, CSV)
    response = await finish(server, await server.create(tools=[TOOL], background=True))
    assert [item["status"] for item in response["output"]] == ["completed", "completed"]


async def test_cancelling_a_response_interrupts_its_code(server: ApiServer) -> None:
    api = ContainerApi(server)
    container = (await api.create())["id"]
    tool = {"type": "code_interpreter", "container": container}
    server.engine.says(*make_calls("n = 1\nopen('/mnt/data/begun', 'w').close()\nwhile True: n += 1"))
    created = await server.create(tools=[tool], background=True)
    while not await api.components.sandbox.list_files(container):
        pass
    cancelled = (await server.post(f"responses/{created['id']}/cancel")).json()
    assert cancelled["status"] == "cancelled"
    assert cancelled["output"][0]["status"] == "incomplete"
    response = await create(server, "n > 0", tools=[tool], include=[OUTPUTS])
    assert response["output"][0]["outputs"] == [{"type": "logs", "logs": "True\n"}]


@pytest.mark.shows("E.18")
@pytest.mark.parametrize("background", [False, True])
async def test_a_container_that_cannot_be_used_is_rejected_before_anything_happens(
    server: ApiServer, background: bool
) -> None:
    api = ContainerApi(server)
    gone = (await api.create())["id"]
    await api.components.sandbox.stop(gone)
    cases: list[tuple[Any, str, str]] = [
        ("cntr_0", "container", "container_not_found"),
        (gone, "container", "container_expired"),
        ({"type": "auto", "file_ids": ["file-0"]}, "container.file_ids[0]", "invalid_value"),
        ({"type": "auto", "file_ids": ["file-0"] * 101}, "container.file_ids", "invalid_value"),
        ({"type": "auto", "memory_limit": "64g"}, "container.memory_limit", "invalid_value"),
        (
            {"type": "auto", "network_policy": {"type": "allowlist", "allowed_domains": ["x.example"]}},
            "container.network_policy",
            "unsupported_parameter",
        ),
    ]
    for container, param, code in cases:
        tool = {"type": "code_interpreter", "container": container}
        body = {"model": "fake", "input": "hi", "tools": [{"type": "shell"}, tool], "background": background}
        answer = await server.post("responses", body)
        assert (answer.status, answer.error["param"], answer.error["code"]) == (400, f"tools[1].{param}", code)
    assert not server.engine.seen


@pytest.mark.shows("E.26")
@pytest.mark.parametrize(("settings", "flag"), [({"sandbox": "none"}, "--sandbox"), ({"disable_store": True}, "store")])
async def test_the_tool_is_rejected_where_code_is_not_run(settings: dict[str, Any], flag: str) -> None:
    async with run_api(**settings) as server:
        answer = await server.post("responses", {"model": "fake", "input": "hi", "tools": [TOOL], "store": False})
        assert (answer.status, answer.error["param"]) == (400, "tools[0]")
        assert flag in answer.error["message"]


@pytest.mark.shows("E.26")
@pytest.mark.parametrize("stream", [False, True])
async def test_the_tool_is_rejected_on_a_host_without_a_sandbox(tmp_path: Path, stream: bool) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho this kernel has no Landlock >&2\nexit 1\n")
    python.chmod(0o755)
    async with run_api(sandbox_folder=tmp_path / "sandbox", sandbox_python=str(python)) as server:
        answer = await server.post("responses", {"model": "fake", "input": "hi", "tools": [TOOL], "stream": stream})
        assert (answer.status, answer.error["param"], answer.error["code"]) == (400, "tools[0]", "sandbox_disabled")
        assert "--sandbox auto" in answer.error["message"]
        assert not server.engine.seen


@pytest.mark.shows("H3.6")
async def test_legacy_events_have_the_outputs(sandbox_options: dict[str, Any]) -> None:
    async with asyncio.timeout(120), run_api(**sandbox_options, legacy_events="on") as server:
        queue_turns(server, "6 * 7")
        body = {"model": "fake", "input": "?", "tools": [TOOL], "stream": True, "include": [OUTPUTS]}
        events = parse_events(await server.post("responses", body))
        (completed,) = [event for event in events if event["type"] == "response.code_interpreter_call.completed"]
        assert completed["outputs"] == [{"type": "logs", "logs": "42\n"}]


# ---- gpt-oss


@pytest.fixture
async def gpt_oss(sandbox_options: dict[str, Any]) -> AsyncIterator[ApiServer]:
    engine = FakeEngine(FakeSettings(level="harmony"))
    async with asyncio.timeout(120), run_api(engine=engine, **sandbox_options) as server:
        yield server


def queue_tokens(server: ApiServer, output: str) -> None:
    server.engine.says(*[Chunk(tokens=(token,)) for token in encode_tokens(output)])


def read_prompt(server: ApiServer) -> str:
    prompt = server.engine.seen[-1].prompt
    assert isinstance(prompt, TokenPrompt)
    return decode_tokens(prompt.tokens)


@pytest.mark.shows("D.4", "E.18")
async def test_gpt_oss_writes_code_to_python_without_json(gpt_oss: ApiServer) -> None:
    code = '"""{"""\n' + CSV + "\n{x + 1, 7}"
    queue_tokens(gpt_oss, f"<|channel|>analysis<|message|>I compute.<|end|><|start|>assistant<|channel|>analysis "
                 f"to=python code<|message|>{code}<|call|>")  # fmt: skip
    queue_tokens(gpt_oss, f"<|channel|>final<|message|>See [it]({LINK}).<|return|>")
    response = await gpt_oss.create(tools=[TOOL], include=[OUTPUTS])
    check_response(response)
    reasoning, call, message = response["output"]
    assert (reasoning["type"], call["code"]) == ("reasoning", code)
    assert call["outputs"] == [{"type": "logs", "logs": "{42, 7}\n"}]
    assert message["content"][0]["annotations"][0]["filename"] == "numbers.csv"
    prompt = read_prompt(gpt_oss)
    assert "# Tools\n\n## python\n\nUse this tool to execute Python code" in prompt
    assert f"<|start|>assistant<|channel|>analysis to=python<|message|>{code}<|call|>" in prompt
    assert "<|start|>python<|channel|>analysis to=assistant<|message|>{42, 7}" in prompt


@pytest.mark.shows("D.4")
async def test_gpt_oss_gets_a_function_if_the_call_is_required(gpt_oss: ApiServer) -> None:
    queue_tokens(gpt_oss, '{"code": "6 * 7"}<|call|>')
    queue_tokens(gpt_oss, "<|channel|>final<|message|>42.<|return|>")
    response = await gpt_oss.create(tools=[TOOL], tool_choice={"type": "code_interpreter"}, include=[OUTPUTS])
    assert response["output"][0]["code"] == "6 * 7"
    assert response["output"][0]["outputs"] == [{"type": "logs", "logs": "42\n"}]
