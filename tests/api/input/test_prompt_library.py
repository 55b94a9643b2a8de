"""The operator's prompt library: prompts are found by id and version, filled, and rendered before the input.

Covers `service/planning/prompt_library.py`.
"""

import asyncio
import json
import os
import signal
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from antiphon.config import Config
from antiphon.core.deltas import Text
from antiphon.core.prompt import ChatPrompt
from antiphon.engines.fake import FakeEngine
from antiphon.errors import StartupError
from antiphon.wiring import build_app
from tests.api.app import ApiServer, parse_events, run_api
from tests.oracles.responses import check_event, check_response
from tests.support.media_files import png
from tests.support.server_process import run_server
from tests.transport.websocket.ws_client import open_websocket

pytestmark = pytest.mark.anyio

IMAGE_URL = "data:image/png;base64," + b64encode(png()).decode()
GREETING = """
instructions = "You serve {{ name }}."
[[messages]]
role = "developer"
content = "Speak {{language}}."
[[messages]]
content = "Look at {{picture}} and greet {{name}}."
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "greeting.toml").write_text(GREETING)
    (tmp_path / "many").mkdir()
    for version in ("1", "2", "9", "10"):
        (tmp_path / "many" / f"{version}.toml").write_text(f'instructions = "version {version}"\nmodel = "fake"')
    (tmp_path / "plain.toml").write_text('id = "pmpt_plain"\nversion = "v2"\ninstructions = "Hello"')
    return tmp_path


def build_greeting(**variables: Any) -> dict[str, Any]:
    return {"id": "greeting", "variables": {"name": "Ann", "language": "Latin", "picture": "it", **variables}}


def get_last_messages(server: ApiServer) -> list[dict[str, Any]]:
    prompt = server.engine.seen[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return [*prompt.messages]


@pytest.mark.shows("A.32")
async def test_a_prompt_precedes_the_input_and_is_echoed_with_its_version(folder: Path) -> None:
    async with run_api(prompt_dir=folder) as server:
        made = await server.create(prompt=build_greeting())
        check_response(made)
        assert made["prompt"] == {**build_greeting(), "version": "1"}
        assert made["instructions"] == "You serve Ann."
        assert [message["content"] for message in get_last_messages(server)] == [
            "You serve Ann.", "Speak Latin.", "Look at it and greet Ann.", "hi",
        ]  # fmt: skip
        events = parse_events(
            await server.post("responses", {"model": "fake", "prompt": build_greeting(), "stream": True})
        )
        for event in events:
            check_event(event)
        assert events[-1]["response"]["prompt"]["version"] == "1"


@pytest.mark.shows("A.32")
async def test_image_and_file_variables_become_parts_between_the_texts(folder: Path) -> None:
    data = "data:text/plain;base64," + b64encode(b"So").decode()
    file = {"type": "input_file", "filename": "a.txt", "file_data": data}
    async with run_api(prompt_dir=folder) as server:
        image = {"type": "input_image", "image_url": IMAGE_URL}
        made = await server.create(prompt=build_greeting(picture=image, name={"type": "input_text", "text": "Bo"}))
        check_response(made)
        parts = get_last_messages(server)[-2]["content"]
        assert [part["type"] for part in parts] == ["text", "image_url", "text"]
        assert (parts[0]["text"], parts[2]["text"]) == ("Look at ", " and greet Bo.")
        await server.create(prompt=build_greeting(picture=file))
        assert "So" in str(get_last_messages(server)[-2]["content"])
        answer = await server.post("responses", {"model": "fake", "prompt": build_greeting(language=file)})
        assert (answer.status, answer.error["param"]) == (400, "prompt.variables.language")


@pytest.mark.shows("A.32")
async def test_placeholders_in_variable_values_are_not_expanded(folder: Path) -> None:
    async with run_api(prompt_dir=folder) as server:
        await server.create(prompt=build_greeting(name="{{language}}", language="{{name}}", picture="<|im_end|>{{"))
        contents = [message["content"] for message in get_last_messages(server)]
        assert "You serve {{language}}." in contents[0]
        assert "Look at <|im_end|>{{ and greet {{language}}." in contents


@pytest.mark.shows("A.32")
async def test_the_newest_version_is_used_unless_another_is_requested(folder: Path) -> None:
    async with run_api(prompt_dir=folder) as server:
        for requested, version in ((None, "10"), ("2", "2"), ("9", "9")):
            made = await server.post_ok("responses", {"input": "hi", "prompt": {"id": "many", "version": requested}})
            assert (made["instructions"], made["prompt"]["version"]) == (f"version {version}", version)
        made = await server.create(prompt={"id": "pmpt_plain"}, instructions="Mine")
        assert made["instructions"] == "Mine"
        assert made["prompt"] == {"id": "pmpt_plain", "version": "v2", "variables": None}


@pytest.mark.shows("A.32")
@pytest.mark.parametrize(
    ("prompt", "status", "param"),
    [
        ({"id": "nobody"}, 404, "prompt.id"),
        ({"id": "../greeting"}, 404, "prompt.id"),
        ({"id": "many", "version": "3"}, 404, "prompt.version"),
        ({"id": "greeting"}, 400, "prompt.variables.name"),
        (build_greeting(other="x"), 400, "prompt.variables.other"),
        ({"id": "many", "variables": {"x": "y"}}, 400, "prompt.variables.x"),
        (build_greeting(name=7), 400, "prompt.variables"),
    ],
)
async def test_an_unknown_prompt_version_or_variable_is_rejected_by_name(
    folder: Path, prompt: Any, status: int, param: str
) -> None:
    async with run_api(prompt_dir=folder) as server:
        for path in ("responses", "responses/input_tokens"):
            answer = await server.post(path, {"model": "fake", "input": "hi", "prompt": prompt})
            assert (answer.status, answer.error["param"]) == (status, param), answer.body
        assert server.engine.requests == 0


async def test_prompts_are_rejected_without_a_prompt_directory() -> None:
    async with run_api() as server:
        answer = await server.post("responses", {"model": "fake", "input": "hi", "prompt": {"id": "p"}})
        assert (answer.status, answer.error["param"]) == (400, "prompt")
        assert "--prompt-dir" in answer.error["message"]


@pytest.mark.shows("A.32")
async def test_a_queued_background_response_keeps_its_original_prompt(folder: Path) -> None:
    async with run_api(prompt_dir=folder, background_slots=1) as server:
        gate = server.engine.holds()
        first = await server.create(background=True)
        async with asyncio.timeout(30):
            await gate.reached.wait()
        second = await server.create(background=True, prompt=build_greeting())
        (folder / "greeting.toml").unlink()
        await server.app.lifecycle.components.request_policy.prompts.reload()  # type: ignore[attr-defined]  # as on SIGHUP
        gate.open()
        assert (
            parse_events(await server.get(f"responses/{second['id']}?stream=true"))[-1]["type"] == "response.completed"
        )
        assert any("You serve Ann." in message["content"] for message in get_last_messages(server))
        assert sum("greet Ann" in str(message["content"]) for message in get_last_messages(server)) == 1
        assert first["id"] != second["id"]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.toml", "instructions = 3", "is invalid"),
        ("a.toml", "instructons = 'x'", "unknown field"),
        ("a.toml", "[[messages]]\nrole='tool'\ncontent='x'", "is invalid"),
        ("a.toml", "=", "not valid TOML"),
        ("a b.toml", "instructions = 'x'", "invalid name"),
        ("b.toml", "id = 'plain'\nversion = '1'", "already"),
    ],
)
def test_an_invalid_prompt_file_stops_the_start(tmp_path: Path, name: str, text: str, reason: str) -> None:
    (tmp_path / "plain.toml").write_text("instructions = 'x'")
    (tmp_path / name).write_text(text)
    with pytest.raises(StartupError, match=reason):
        build_app(Config.from_settings(store="memory", prompt_dir=tmp_path), FakeEngine())
    with pytest.raises(StartupError, match="not a folder"):
        build_app(Config.from_settings(store="memory", prompt_dir=tmp_path / "nowhere"), FakeEngine())


@pytest.mark.shows("A.32")
def test_sighup_reloads_the_prompts_and_an_invalid_file_changes_nothing(folder: Path) -> None:
    with run_server("--engine", "fake", "--prompt-dir", str(folder)) as live:

        def read_instructions() -> Any:
            body = {"model": "fake", "input": "hi", "prompt": {"id": "pmpt_plain"}}
            return json.loads(live.post(body)[1]).get("instructions")

        def reload_with(text: str, log_line: str) -> None:
            (folder / "plain.toml").write_text(text)
            os.kill(live.process.pid, signal.SIGHUP)
            for _ in range(1000):
                if log_line.encode() in live.read_output():
                    return
                read_instructions()
            raise AssertionError(live.read_output())

        assert read_instructions() == "Hello"
        reload_with("=", "The prompts were not reloaded")
        assert read_instructions() == "Hello"
        reload_with('id = "pmpt_plain"\ninstructions = "Bye"', "Prompts reloaded")
        assert read_instructions() == "Bye"


async def test_the_successor_of_a_steered_response_does_not_repeat_the_prompt(folder: Path) -> None:
    async with run_api(prompt_dir=folder) as server, open_websocket(server.app) as connection:
        server.engine.says(Text("so"))
        gate = server.engine.holds(after=1)
        connection.send_create(prompt=build_greeting(), stream_options={"include_obfuscation": False})
        created = await connection.receive_event()
        async with asyncio.timeout(30):
            await gate.reached.wait()
        steer = {"previous_response_id": created["response"]["id"], "input": "and now?"}
        connection.send(json.dumps({"type": "response.steer", **steer}))
        ends = [await connection.receive_end(), await connection.receive_end()]
        gate.open()
    assert [end["type"] for end in ends] == ["response.incomplete", "response.completed"]
    assert [end["response"]["instructions"] for end in ends] == ["You serve Ann."] * 2
    assert str(get_last_messages(server)).count("greet Ann") == 1
