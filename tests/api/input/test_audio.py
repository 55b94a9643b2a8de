"""Audio parts, from the request to the engine. Covers `render/audio.py`."""

import json
from base64 import b64encode
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.core.prompt import ChatPrompt
from antiphon.limits import Limits
from tests.api.app import run_api
from tests.engines.http.stubs.chat_stub import run_stub
from tests.engines.http.stubs.generation import open_app, post_response
from tests.support.asgi_client import JSON, call

pytestmark = pytest.mark.anyio

WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
MP3 = b64encode(b"ID3\x04" + b"\x00" * 20).decode()
FRAME = b64encode(b"\xff\xfb\x90\x00").decode()


def audio_part(data: str = WAV, audio_format: str = "wav") -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": data, "format": audio_format}}


def audio_message(data: str = WAV, audio_format: str = "wav") -> dict[str, Any]:
    return {"role": "user", "content": [audio_part(data, audio_format)]}


@pytest.mark.shows("G3.4")
@pytest.mark.parametrize(("data", "audio_format"), [(WAV, "wav"), (MP3, "mp3"), (FRAME, "mp3")])
async def test_audio_reaches_a_model_that_takes_it(data: str, audio_format: str) -> None:
    async with run_api() as server:
        await server.create(input=[audio_message(data, audio_format)])
        body = {"model": "fake", "messages": [audio_message(data, audio_format)]}
        await server.post_ok("chat/completions", body)
        for request in server.engine.seen:
            assert isinstance(request.prompt, ChatPrompt)
            assert request.prompt.messages[-1]["content"] == [audio_part(data, audio_format)]


@pytest.mark.parametrize(
    ("data", "audio_format"),
    [
        ("", "wav"),
        ("AAAA", "wav"),
        (WAV, "mp3"),
        (MP3, "wav"),
        ("#" * 40, "wav"),
        ("é", "mp3"),
        *[(MP3 + 20 * "AAAA" + end, "mp3") for end in ("#AAA", "éAAA", "====", "A=AA", "\ud83c\udf99")],
    ],
)
async def test_data_of_another_format_is_refused_by_name(data: str, audio_format: str) -> None:
    async with run_api() as server:
        answer = await server.post("responses", {"model": "fake", "input": [audio_message(data, audio_format)]})
        body = {"model": "fake", "messages": [audio_message(data, audio_format)]}
        chat = await server.post("chat/completions", body)
        assert server.engine.requests == 0
    assert (answer.status, answer.error["param"]) == (400, "input[0].content[0].input_audio.data")
    assert (chat.status, chat.error["param"]) == (400, "messages[0].content[0].input_audio.data")


async def test_other_formats_and_large_files_are_refused_by_name() -> None:
    async with run_api(limits=Limits(audio_bytes=20)) as server:
        large = await server.post("responses", {"model": "fake", "input": [audio_message()]})
        other = await server.post("responses", {"model": "fake", "input": [audio_message(audio_format="ogg")]})
    assert (large.status, large.error["param"]) == (400, "input[0].content[0].input_audio.data")
    assert (other.status, other.error["param"]) == (400, "input[0].content[0].input_audio.format")


@pytest.mark.shows("G3.4")
async def test_a_server_whose_model_hears_gets_audio_parts() -> None:
    async with run_stub("vllm") as stub, open_app(stub.url) as app:
        answer = await post_response(app, input=[audio_message()])
        assert answer.status == 200, answer.body
        chat = json.dumps({"model": "m", "messages": [audio_message()]}).encode()
        assert (await call(app, "POST", "/v1/chat/completions", JSON, body=[chat])).status == 200
    assert [sent["messages"][-1]["content"] for sent in stub.chat_bodies] == [[audio_part()]] * 2


@pytest.mark.parametrize("hears", [False, True])
async def test_llamacpp_reports_whether_its_model_hears(hears: bool) -> None:
    modalities = {"vision": False, "audio": hears}
    async with run_stub("llamacpp-server") as stub:
        props = {**stub.dialect.asides["/props"], "modalities": modalities}
        stub.dialect = replace(stub.dialect, asides={"/props": props})
        async with open_app(stub.url) as app:
            answer = await post_response(app, input=[audio_message()])
    assert answer.status == (200 if hears else 400)
    if not hears:
        assert answer.error["param"] == "input[0].content[0]"


@pytest.mark.shows("G3.4")
@pytest.mark.parametrize("name", ["sglang", "ollama", "ovms"])
async def test_engines_that_take_no_audio_refuse_it_by_name(name: str) -> None:
    async with run_stub(name) as stub, open_app(stub.url) as app:
        answer = await post_response(app, input=[audio_message()])
    assert (answer.status, answer.error["param"]) == (400, "input[0].content[0]")
    assert not stub.chat_bodies
