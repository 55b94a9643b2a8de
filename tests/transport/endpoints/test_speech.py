"""POST /v1/audio/speech, on the fake engine and on an HTTP engine whose behaviour each test defines.

Covers `protocol/bodies/speech.py`.
"""

import asyncio
import io
import json
import wave
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antiphon.config.rate_limits import SheddingSettings
from antiphon.transport.middleware.app import App
from tests.api.app import Client, run_api
from tests.engines.http.stubs.generation import open_app
from tests.engines.unix_server import END, http_chunk, json_response, read_request
from tests.support.asgi_client import JSON, AsgiResponse, call
from tests.support.local_servers import Reader, Writer, serve_tcp

pytestmark = pytest.mark.anyio

SPEECH: dict[str, Any] = {"model": "fake", "input": "Hello there.", "voice": "alloy", "response_format": "wav"}
AUDIO = b"HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = AUDIO.replace(b"audio/mpeg", b"text/event-stream")
Speak = Callable[[Reader, Writer, dict[str, Any]], Coroutine[Any, Any, None]]


@asynccontextmanager
async def run_speaker(speak: Speak, **settings: Any) -> AsyncIterator[App]:
    """Run a server in front of an OpenAI-compatible engine that answers speech requests with `speak`."""

    async def serve(reader: Reader, writer: Writer) -> None:
        while True:
            path, _, body = (await read_request(reader)).partition(b" ")
            if path == b"/v1/models":
                writer.write(json_response(b'{"data": [{"id": "tts"}]}'))
            elif path != b"/v1/audio/speech":
                writer.write(json_response(b"{}", "404 Not Found"))
            elif body == b"{}":
                writer.write(json_response(b'{"error": {"message": "input is missing"}}', "400 Bad Request"))
            else:
                await speak(reader, writer, json.loads(body))

    async with (
        serve_tcp(serve) as port,
        open_app(f"openai://127.0.0.1:{port}", shed=SheddingSettings(lag=0.0), **settings) as app,
    ):
        yield app


async def request_speech(app: App, **fields: Any) -> AsgiResponse:
    body = json.dumps({"model": "tts", "input": "Hi.", "voice": "alloy", **fields}).encode()
    return await call(app, "POST", "/v1/audio/speech", JSON, body=[body])


async def test_the_fake_engine_speaks_a_wave_file() -> None:
    async with run_api() as server:
        answer = await server.post("audio/speech", SPEECH)
    assert (answer.status, answer.header(b"content-type")) == (200, b"audio/wav")
    with wave.open(io.BytesIO(answer.body)) as audio:
        assert (audio.getframerate(), audio.getnframes()) == (8000, 1600)


@pytest.mark.shows("G3.3")
async def test_all_fields_are_passed_on_and_the_audio_is_streamed() -> None:
    bodies, proceed = [], asyncio.Event()

    async def speak(reader: Reader, writer: Writer, body: dict[str, Any]) -> None:
        bodies.append(body)
        writer.write(AUDIO + http_chunk(b"one"))
        await proceed.wait()
        writer.write(http_chunk(b"two") + END)

    fields = {"model": "tts", "input": "Hi.", "voice": {"id": "v1"}, "speed": 1.5, "instructions": "Whisper."}
    async with run_speaker(speak) as app:
        client = Client(app, "POST", "audio/speech", **fields)
        received = b""
        while b"one" not in received:
            received += (await client.messages.get()).get("body", b"")
        proceed.set()  # the first piece arrived before the engine has sent the second
        await client.request
    assert bodies == [{**fields, "response_format": "mp3"}]


async def test_speech_as_events_is_passed_on() -> None:
    event = b'data: {"type":"speech.audio.delta","audio":"AA=="}\n\n'

    async def speak(reader: Reader, writer: Writer, body: dict[str, Any]) -> None:
        assert body["stream_format"] == "sse"
        writer.write(EVENTS + http_chunk(event) + END)

    async with run_speaker(speak) as app:
        answer = await request_speech(app, stream_format="sse")
    assert (answer.header(b"content-type"), answer.body) == (b"text/event-stream", event)


async def test_an_engine_that_sends_no_events_is_refused_by_name() -> None:
    async def speak(reader: Reader, writer: Writer, body: dict[str, Any]) -> None:
        writer.write(AUDIO + http_chunk(b"one") + END)

    async with run_speaker(speak) as app:
        answer = await request_speech(app, stream_format="sse")
    assert (answer.status, answer.error["param"]) == (400, "stream_format")


async def test_a_reply_that_is_no_audio_is_an_engine_error() -> None:
    async def speak(reader: Reader, writer: Writer, body: dict[str, Any]) -> None:
        writer.write(json_response(b"{}"))

    async with run_speaker(speak) as app:
        answer = await request_speech(app)
    assert (answer.status, answer.error["code"]) == (500, "server_error")


async def test_a_rejection_of_the_engine_is_returned() -> None:
    async def speak(reader: Reader, writer: Writer, body: dict[str, Any]) -> None:
        writer.write(json_response(b'{"error": {"message": "no such voice", "param": "voice"}}', "400 Bad Request"))

    async with run_speaker(speak) as app:
        answer = await request_speech(app)
    assert answer.status == 400
    assert "no such voice" in answer.error["message"]


async def test_a_silent_engine_is_an_error_after_the_deadline() -> None:
    async def speak(reader: Reader, writer: Writer, body: dict[str, Any]) -> None:
        await reader.read()

    async with run_speaker(speak, first_token_timeout=0.1) as app:
        answer = await request_speech(app)
    assert answer.status == 500


@pytest.mark.shows("G3.3")
@pytest.mark.parametrize("first", [b"", b"one"], ids=["before the first byte", "after it"])
async def test_a_client_that_disconnects_closes_the_connection_to_the_engine(first: bytes) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def speak(reader: Reader, writer: Writer, body: dict[str, Any]) -> None:
        writer.write(AUDIO + http_chunk(first) if first else b"")
        began.set()
        assert await reader.read() == b""
        ended.set()

    async with asyncio.timeout(30), run_speaker(speak) as app:
        client = Client(app, "POST", "audio/speech", model="tts", input="Hi.", voice="alloy")
        await began.wait()
        while first and first not in (await client.messages.get()).get("body", b""):
            pass
        client.disconnect()
        await ended.wait()
        await client.request


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": "x" * 4097}, "input"),
        ({"voice": ""}, "voice"),
        ({"speed": 5}, "speed"),
        ({"response_format": "exe"}, "response_format"),
        ({"stream_format": "json"}, "stream_format"),
        ({"response_format": "mp3"}, "response_format"),  # the fake engine itself refuses it
    ],
)
async def test_an_invalid_field_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    async with run_api() as server:
        answer = await server.post("audio/speech", {**SPEECH, **fields})
    assert (answer.status, answer.error["param"]) == (400, param)


async def test_a_model_that_does_not_speak_is_a_404_that_says_so() -> None:
    async def speak(reader: Reader, writer: Writer, body: dict[str, Any]) -> None: ...

    async with run_speaker(speak) as app:
        answer = await request_speech(app, model="other")
        assert answer.status == 404
    async with run_api() as server:
        described = (await call(server.app, "GET", "/openapi.json")).json()["paths"]
    assert "audio/mpeg" in described["/v1/audio/speech"]["post"]["responses"]["200"]["content"]


async def test_unknown_fields_are_not_passed_on() -> None:
    async with run_api() as server:
        answer = await server.post("audio/speech", {**SPEECH, "ref_audio": "http://127.0.0.1/a.wav"})
    assert answer.header(b"x-antiphon-ignored") == b"ref_audio"
