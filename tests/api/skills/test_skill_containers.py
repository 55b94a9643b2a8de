"""Skills in containers through the whole server, in a real sandbox.

Covers `service/skills/container_skills.py` and `core/skills.py`.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text
from tests.api.app import ApiServer, parse_events, run_api
from tests.api.containers.container_api import ContainerApi
from tests.api.skills.test_skills import accept, create, find_error, send
from tests.oracles.responses import check_event, check_response
from tests.support.asgi_client import call
from tests.support.skill_zips import MANIFEST, make_inline, make_zip

pytestmark = pytest.mark.anyio
ZIP = make_zip({"run.sh": b"#!/bin/sh\necho ran\n"})
PATH = f"/home/oai/skills/island-rescue-{hashlib.sha256(ZIP).hexdigest()[:32]}"
OTHER = make_zip(manifest=b"---\nname: Other one\ndescription: Second.\n---\n")
OTHER_PATH = f"/home/oai/skills/Other-one-{hashlib.sha256(OTHER).hexdigest()[:32]}"
NOTE = (
    "Read the file SKILL.md in a skill's folder before you do what the skill is for. Skills:\n"
    f"- island-rescue ({PATH}): How to be rescued."
)
OTHER_LINE = f"- Other one ({OTHER_PATH}): Second."


@pytest.fixture
async def server(sandbox_options: dict[str, Any]) -> AsyncIterator[ApiServer]:
    async with asyncio.timeout(120), run_api(**sandbox_options) as server:
        yield server


def make_tool(*skills: Any) -> dict[str, Any]:
    return {"type": "shell", "environment": {"type": "container_auto", "skills": [*skills]}}


def refer(skill_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "skill_reference", "skill_id": skill_id, **fields}


def says(server: ApiServer, *commands: str, name: str = "shell", **arguments: str) -> None:
    """Let the model call a tool, and answer."""
    fields = json.dumps(arguments or {"commands": commands})
    server.engine.says(CallStarted(0, name), CallDelta(0, fields), CallDone(0))
    server.engine.says(Text("Done."))


async def run(server: ApiServer, tool: dict[str, Any], *commands: str, **fields: Any) -> tuple[Any, list[str]]:
    """Return a response and what its commands have written."""
    says(server, *commands)
    response = await server.create(tools=[tool], **fields)
    check_response(response)
    outputs = [item for item in response["output"] if item["type"] == "shell_call_output"]
    return response, [output["stdout"] + output["stderr"] for item in outputs for output in item["output"]]


def list_messages(server: ApiServer, number: int = -1) -> list[dict[str, Any]]:
    return [*server.engine.seen[number].prompt.messages]  # type: ignore[union-attr]  # a chat


@pytest.mark.shows("E7.6", "E7.7")
async def test_a_model_is_shown_a_stored_skill_reads_it_and_cannot_change_it(server: ApiServer) -> None:
    skill = await create(server, [("a.zip", ZIP)])
    commands = (f"ls {PATH}; cat {PATH}/SKILL.md", f"{PATH}/run.sh", f"echo x > {PATH}/SKILL.md || echo refused")
    response, outputs = await run(server, make_tool(refer(skill["id"])), *commands, instructions="Be brief.")
    assert outputs[:2] == [f"SKILL.md\nrun.sh\n{MANIFEST.decode()}", "ran\n"]
    assert "refused\n" in outputs[2]
    assert list_messages(server, 0) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"{NOTE}\n\nhi"},
    ]
    assert list_messages(server)[:2] == list_messages(server, 0)  # in all turns
    assert response["tools"] == [make_tool(refer(skill["id"], version="1"))]
    assert (await ContainerApi(server).get(f"containers/{response['output'][0]['environment']['container_id']}/files"))[
        "data"
    ] == []
    stored = (await server.get(f"responses/{response['id']}/input_items")).json()
    assert stored["data"][0]["content"] == [{"type": "input_text", "text": "hi"}]


@pytest.mark.shows("E7.7")
@pytest.mark.parametrize(("version", "path"), [(None, PATH), ("1", PATH), (2, OTHER_PATH), ("latest", OTHER_PATH)])
async def test_a_reference_means_the_default_version_a_number_or_the_latest(
    server: ApiServer, version: str | int | None, path: str
) -> None:
    skill = await create(server, [("a.zip", ZIP)])
    accept(await send(server, f"skills/{skill['id']}/versions", [("a.zip", OTHER)]))
    reference = refer(skill["id"], **({} if version is None else {"version": version}))
    response, outputs = await run(server, make_tool(reference, reference), "ls -d /home/oai/skills/*")
    assert outputs[0].endswith(f"{path.rpartition('/')[2]}\n")
    assert outputs[0].count("\n") == 1
    number = "1" if path == PATH else "2"
    assert response["tools"] == [make_tool(refer(skill["id"], version=number))]


@pytest.mark.shows("E7.6")
async def test_an_inline_skill_is_unpacked_and_its_data_is_not_repeated(server: ApiServer) -> None:
    tool = make_tool(make_inline(ZIP), make_inline(OTHER, "Other one", "Second."))
    says(server, f"cat {PATH}/SKILL.md", f"ls {OTHER_PATH}")
    body = {"model": "fake", "input": "?", "tools": [tool], "stream": True}
    answer = await server.post("responses", body)
    events = parse_events(answer)
    for event in events:
        check_event(event)
    response = events[-1]["response"]
    assert [one["stdout"] for one in response["output"][1]["output"]] == [MANIFEST.decode(), "SKILL.md\n"]
    assert list_messages(server, 0) == [{"role": "user", "content": f"{NOTE}\n{OTHER_LINE}\n\n?"}]
    data = tool["environment"]["skills"][0]["source"]["data"]
    assert data not in answer.body.decode()
    assert response["tools"][0]["environment"]["skills"][0] == {
        **make_inline(b""), "source": {"type": "base64", "media_type": "application/zip", "data": ""},
    }  # fmt: skip
    assert data not in (await server.get(f"responses/{response['id']}")).body.decode()


@pytest.mark.shows("E7.6")
async def test_a_continuation_gets_further_skills_in_the_same_container(server: ApiServer) -> None:
    first, _ = await run(server, make_tool(make_inline(ZIP)), "echo 1 > n")
    tools = make_tool(make_inline(ZIP), make_inline(OTHER, "Other one", "Second."))
    second, outputs = await run(server, tools, f"cat n; ls {OTHER_PATH}", previous_response_id=first["id"])
    assert outputs == ["1\nSKILL.md\n"]
    assert second["output"][0]["environment"] == first["output"][0]["environment"]
    assert list_messages(server)[0] == {"role": "user", "content": f"{NOTE}\n{OTHER_LINE}\n\nhi"}


@pytest.mark.shows("E7.6")
async def test_a_container_is_created_with_skills_and_requests_that_name_it_show_them(server: ApiServer) -> None:
    api = ContainerApi(server)
    skill = await create(server, [("a.zip", ZIP)])
    container = (await api.create(skills=[refer(skill["id"]), make_inline(OTHER, "Other one", "Second.")]))["id"]
    tool = {"type": "shell", "environment": {"type": "container_reference", "container_id": container}}
    response, outputs = await run(server, tool, f"{PATH}/run.sh; ls {OTHER_PATH}")
    assert outputs == ["ran\nSKILL.md\n"]
    shown = [{"role": "user", "content": f"{NOTE}\n{OTHER_LINE}\n\nhi"}]
    assert list_messages(server, 0) == shown
    assert response["tools"] == [tool]
    says(server, name="code_interpreter", code=f"open('{PATH}/SKILL.md').read()")
    tools = [{"type": "code_interpreter", "container": container}]
    response = await server.create(tools=tools, include=["code_interpreter_call.outputs"])
    assert "Shout STOP." in response["output"][0]["outputs"][0]["logs"]
    assert list_messages(server, 2) == shown


@pytest.mark.shows("E7.6")
async def test_the_code_interpreter_shares_a_container_with_skills(server: ApiServer) -> None:
    says(server, f"ls {PATH}")
    tools = [{"type": "code_interpreter", "container": {"type": "auto"}}, make_tool(make_inline(ZIP))]
    response = await server.create(tools=tools)
    assert response["output"][1]["output"][0]["stdout"] == "SKILL.md\nrun.sh\n"
    says(server, name="code_interpreter", code=f"open('{PATH}/SKILL.md').read()")
    response = await server.create(tools=tools, include=["code_interpreter_call.outputs"])
    assert "Shout STOP." in response["output"][0]["outputs"][0]["logs"]


@pytest.mark.shows("E7.3", "E7.4")
async def test_skills_that_cannot_be_had_are_refused_by_name(sandbox_options: dict[str, Any], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one key-one\ntwo key-two\n")
    one, two = ((b"authorization", f"Bearer key-{name}".encode()) for name in ("one", "two"))
    async with run_api(**sandbox_options, api_key_file=keys) as server:
        foreign = (await send(server, "skills", [("a.zip", ZIP)], one)).json()["id"]
        own = (await send(server, "skills", [("a.zip", ZIP)], two)).json()["id"]
        broken = make_inline(b"PK no zip")
        cases: list[tuple[Any, str]] = [
            (refer(foreign), ""),
            (refer("skill_0"), ""),
            (refer(own, version=2), ""),
            (refer(own, version="newest"), ""),
            (make_inline(ZIP, name=""), ""),
            (make_inline(ZIP, description="\x1b"), ""),
            (broken, ".source.data"),
            ({**broken, "source": {**broken["source"], "data": "%"}}, ".source.data"),
            ({**broken, "source": {**broken["source"], "media_type": "text/plain"}}, ".source.media_type"),
            ({"type": "local"}, ".type"),
        ]
        for wanted, field in cases:
            skills = [refer(own), wanted]
            body = {"model": "fake", "input": "hi", "tools": [{"type": "shell"}, make_tool(*skills)]}
            answer = await server.post("responses", body, two)
            assert find_error(answer) == (400, "invalid_value", f"tools[1].environment.skills[1]{field}")
            answer = await server.post("containers", {"name": "box", "skills": skills}, two)
            assert find_error(answer) == (400, "invalid_value", f"skills[1]{field}")
        many = await server.post("containers", {"name": "box", "skills": [refer(own)] * 21}, two)
        assert find_error(many)[2] == "skills"
        assert not server.engine.seen
        assert (await call(server.app, "GET", "/v1/containers", two)).json()["data"] == []


async def test_skills_of_a_client_stay_the_clients(server: ApiServer) -> None:
    skill = {"name": "pdf", "description": "Fills in forms.", "path": "skills/pdf"}
    tool = {"type": "shell", "environment": {"type": "local", "skills": [skill]}}
    says(server, "ls")
    response = await server.create(tools=[tool])
    check_response(response)
    assert [item["type"] for item in response["output"]] == ["shell_call"]
    assert response["tools"] == [tool]
    assert list_messages(server, 0) == [{"role": "user", "content": "hi"}]
    assert "- pdf (skills/pdf): Fills in forms." in repr(server.engine.seen[0].prompt)


async def test_where_no_commands_run_skills_change_nothing() -> None:
    async with run_api(sandbox="none", unserved_tools="ignore") as server:
        response = await server.create(tools=[make_tool(refer("skill_0"))])
        assert response["status"] == "completed"
        assert list_messages(server, 0) == [{"role": "user", "content": "hi"}]
