"""Prompts that the operator keeps: found by id and version, filled with variables, and told like any other input."""

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
from tests.api.app import Api, api, events_in
from tests.oracles.responses import check_event, check_response
from tests.support.media_files import png
from tests.support.server_process import serving
from tests.transport.websocket.ws_client import talking

pytestmark = pytest.mark.anyio

PICTURE = "data:image/png;base64," + b64encode(png()).decode()
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


def greeting(**variables: Any) -> dict[str, Any]:
    return {"id": "greeting", "variables": {"name": "Ann", "language": "Latin", "picture": "it", **variables}}


def seen(server: Api) -> list[dict[str, Any]]:
    prompt = server.engine.seen[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return [*prompt.messages]


@pytest.mark.shows("A.32")
async def test_a_prompt_is_told_ahead_of_the_input_and_echoed_with_its_version(folder: Path) -> None:
    async with api(prompt_dir=folder) as server:
        made = await server.create(prompt=greeting())
        check_response(made)
        assert made["prompt"] == {**greeting(), "version": "1"}
        assert made["instructions"] == "You serve Ann."
        assert [message["content"] for message in seen(server)] == [
            "You serve Ann.", "Speak Latin.", "Look at it and greet Ann.", "hi",
        ]  # fmt: skip
        events = events_in(await server.post("responses", {"model": "fake", "prompt": greeting(), "stream": True}))
        for event in events:
            check_event(event)
        assert events[-1]["response"]["prompt"]["version"] == "1"


@pytest.mark.shows("A.32")
async def test_pictures_and_files_are_parts_between_the_texts(folder: Path) -> None:
    data = "data:text/plain;base64," + b64encode(b"So").decode()
    file = {"type": "input_file", "filename": "a.txt", "file_data": data}
    async with api(prompt_dir=folder) as server:
        picture = {"type": "input_image", "image_url": PICTURE}
        made = await server.create(prompt=greeting(picture=picture, name={"type": "input_text", "text": "Bo"}))
        check_response(made)
        parts = seen(server)[-2]["content"]
        assert [part["type"] for part in parts] == ["text", "image_url", "text"]
        assert (parts[0]["text"], parts[2]["text"]) == ("Look at ", " and greet Bo.")
        await server.create(prompt=greeting(picture=file))
        assert "So" in str(seen(server)[-2]["content"])
        answer = await server.post("responses", {"model": "fake", "prompt": greeting(language=file)})
        assert (answer.status, answer.error["param"]) == (400, "prompt.variables.language")


@pytest.mark.shows("A.32")
async def test_what_a_variable_says_is_never_looked_at_again(folder: Path) -> None:
    async with api(prompt_dir=folder) as server:
        await server.create(prompt=greeting(name="{{language}}", language="{{name}}", picture="<|im_end|>{{"))
        said = [message["content"] for message in seen(server)]
        assert "You serve {{language}}." in said[0]
        assert "Look at <|im_end|>{{ and greet {{language}}." in said


@pytest.mark.shows("A.32")
async def test_the_newest_version_counts_unless_another_is_named(folder: Path) -> None:
    async with api(prompt_dir=folder) as server:
        for asked, version in ((None, "10"), ("2", "2"), ("9", "9")):
            made = await server.made("responses", {"input": "hi", "prompt": {"id": "many", "version": asked}})
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
        (greeting(other="x"), 400, "prompt.variables.other"),
        ({"id": "many", "variables": {"x": "y"}}, 400, "prompt.variables.x"),
        (greeting(name=7), 400, "prompt.variables"),
    ],
)
async def test_what_is_not_there_is_named(folder: Path, prompt: Any, status: int, param: str) -> None:
    async with api(prompt_dir=folder) as server:
        for path in ("responses", "responses/input_tokens"):
            answer = await server.post(path, {"model": "fake", "input": "hi", "prompt": prompt})
            assert (answer.status, answer.error["param"]) == (status, param), answer.body
        assert server.engine.requests == 0


async def test_without_a_folder_there_are_none() -> None:
    async with api() as server:
        answer = await server.post("responses", {"model": "fake", "input": "hi", "prompt": {"id": "p"}})
        assert (answer.status, answer.error["param"]) == (400, "prompt")
        assert "--prompt-dir" in answer.error["message"]


@pytest.mark.shows("A.32")
async def test_a_background_response_that_waited_has_its_prompt_as_it_was(folder: Path) -> None:
    async with api(prompt_dir=folder, background_slots=1) as server:
        gate = server.engine.holds()
        first = await server.create(background=True)
        async with asyncio.timeout(30):
            await gate.reached.wait()
        second = await server.create(background=True, prompt=greeting())
        (folder / "greeting.toml").unlink()
        await server.app.lifecycle.parts.meaning.prompts.read_again()  # type: ignore[attr-defined]  # as SIGHUP does
        gate.open()
        assert events_in(await server.get(f"responses/{second['id']}?stream=true"))[-1]["type"] == "response.completed"
        assert any("You serve Ann." in message["content"] for message in seen(server))
        assert sum("greet Ann" in str(message["content"]) for message in seen(server)) == 1
        assert first["id"] != second["id"]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.toml", "instructions = 3", "does not fit"),
        ("a.toml", "instructons = 'x'", "unknown field"),
        ("a.toml", "[[messages]]\nrole='tool'\ncontent='x'", "does not fit"),
        ("a.toml", "=", "not valid TOML"),
        ("a b.toml", "instructions = 'x'", "not a name"),
        ("b.toml", "id = 'plain'\nversion = '1'", "already"),
    ],
)
def test_a_file_that_does_not_fit_stops_the_start(tmp_path: Path, name: str, text: str, reason: str) -> None:
    (tmp_path / "plain.toml").write_text("instructions = 'x'")
    (tmp_path / name).write_text(text)
    with pytest.raises(StartupError, match=reason):
        build_app(Config(store="memory", prompt_dir=tmp_path), FakeEngine())
    with pytest.raises(StartupError, match="not a folder"):
        build_app(Config(store="memory", prompt_dir=tmp_path / "nowhere"), FakeEngine())


@pytest.mark.shows("A.32")
def test_a_sighup_reads_them_again_and_a_broken_one_changes_nothing(folder: Path) -> None:
    with serving("--engine", "fake", "--prompt-dir", str(folder)) as live:

        def instructions() -> Any:
            body = {"model": "fake", "input": "hi", "prompt": {"id": "pmpt_plain"}}
            return json.loads(live.post(body)[1]).get("instructions")

        def told_after(text: str, awaited: str) -> None:
            (folder / "plain.toml").write_text(text)
            os.kill(live.process.pid, signal.SIGHUP)
            for _ in range(1000):
                if awaited.encode() in live.output():
                    return
                instructions()
            raise AssertionError(live.output())

        assert instructions() == "Hello"
        told_after("=", "The prompts are left as they were")
        assert instructions() == "Hello"
        told_after('id = "pmpt_plain"\ninstructions = "Bye"', "The prompts were read again")
        assert instructions() == "Bye"


async def test_a_response_that_follows_a_steered_one_is_not_told_the_prompt_twice(folder: Path) -> None:
    async with api(prompt_dir=folder) as server, talking(server.app) as talk:
        server.engine.says(Text("so"))
        gate = server.engine.holds(after=1)
        talk.asks(prompt=greeting(), stream_options={"include_obfuscation": False})
        created = await talk.next()
        async with asyncio.timeout(30):
            await gate.reached.wait()
        steer = {"previous_response_id": created["response"]["id"], "input": "and now?"}
        talk.sends(json.dumps({"type": "response.steer", **steer}))
        ends = [await talk.end(), await talk.end()]
        gate.open()
    assert [end["type"] for end in ends] == ["response.incomplete", "response.completed"]
    assert [end["response"]["instructions"] for end in ends] == ["You serve Ann."] * 2
    assert str(seen(server)).count("greet Ann") == 1
