"""Moderations, moderated responses and speech with the `openai` package, synchronous and asynchronous."""

import io
import json
import wave
from collections.abc import AsyncIterator, Iterator

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types import ModerationCreateResponse

from tests.support.server_process import ServerProcess, run_server


@pytest.fixture(scope="module")
def moderating_server() -> Iterator[ServerProcess]:
    with run_server("--engine", "fake", "--moderation-model", "fake") as server:
        yield server


@pytest.fixture
def moderating(moderating_server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=moderating_server.v1, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
async def moderating_async(moderating_server: ServerProcess) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=moderating_server.v1, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


def test_texts_are_moderated(moderating: OpenAI) -> None:
    reply = moderating.moderations.create(model="omni-moderation-latest", input=["all is well", "self-harm/intent"])
    ModerationCreateResponse.model_validate_json(reply.to_json(), strict=True)
    assert [one.flagged for one in reply.results] == [False, True]
    assert reply.results[1].categories.self_harm_intent
    assert reply.results[1].category_scores.self_harm_intent > 0.5


@pytest.mark.anyio
async def test_texts_are_moderated_asynchronously(moderating_async: AsyncOpenAI) -> None:
    reply = await moderating_async.moderations.create(input="hate")
    assert reply.results[0].categories.hate


def test_a_server_without_a_moderation_model_names_the_setting(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="--moderation-model"):
        client.moderations.create(input="a")


def test_a_response_is_blocked(moderating: OpenAI) -> None:
    made = moderating.responses.create(
        model="fake",
        input="some violence",
        moderation={"model": "omni-moderation-latest", "policy": {"input": {"mode": "block"}}},
    )
    assert (made.status, made.output_text) == ("incomplete", "")
    assert made.incomplete_details is not None
    assert made.incomplete_details.reason == "content_filter"
    assert made.moderation is not None
    assert made.moderation.input.type == "moderation_result"
    assert made.moderation.input.flagged


@pytest.mark.anyio
async def test_a_streamed_chat_reports_its_moderation_in_a_chunk(moderating_async: AsyncOpenAI) -> None:
    stream = await moderating_async.chat.completions.create(
        model="fake",
        messages=[{"role": "user", "content": "some violence"}],
        moderation={"model": "fake"},
        stream=True,
    )
    chunks = [chunk async for chunk in stream]
    [moderation] = [chunk.moderation for chunk in chunks if chunk.moderation is not None]
    assert moderation.output.type == "moderation_results"
    assert moderation.output.results[0].flagged


def test_speech_is_streamed(client: OpenAI) -> None:
    with client.audio.speech.with_streaming_response.create(
        model="fake", voice="alloy", input="one two three", response_format="wav"
    ) as response:
        body = b"".join(response.iter_bytes())
    assert response.headers["content-type"] == "audio/wav"
    with wave.open(io.BytesIO(body)) as audio:
        assert audio.getnframes() == 2400


@pytest.mark.anyio
async def test_speech_is_streamed_asynchronously_and_as_events(async_client: AsyncOpenAI) -> None:
    async with async_client.audio.speech.with_streaming_response.create(
        model="fake", voice="alloy", input="one two", response_format="pcm", stream_format="sse"
    ) as response:
        lines = [line async for line in response.iter_lines() if line]
    kinds = [json.loads(line.removeprefix("data: "))["type"] for line in lines]
    assert kinds == ["speech.audio.delta", "speech.audio.delta", "speech.audio.done"]


def test_an_unknown_voice_format_is_a_bad_request(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.speech.create(model="fake", voice="alloy", input="a", response_format="flac")
    assert caught.value.param == "response_format"


def test_moderation_and_speech_pass_through_a_second_server(moderating_server: ServerProcess) -> None:
    """The engine of the server is another server with /v1/moderations and /v1/audio/speech."""
    engine = f"openai://127.0.0.1:{moderating_server.port}"
    with (
        run_server("--engine", engine, "--moderation-model", "fake") as server,
        OpenAI(base_url=server.v1, api_key="unused", max_retries=0, timeout=60) as client,
    ):
        flags = [one.flagged for one in client.moderations.create(input=["all is well", "some hate"]).results]
        made = client.responses.create(
            model="fake", input="some hate", moderation={"model": "fake", "policy": {"output": {"mode": "block"}}}
        )
        speech = client.audio.speech.create(model="fake", voice="alloy", input="one", response_format="wav")
    assert flags == [False, True]
    assert (made.status, made.output_text) == ("incomplete", "")
    assert speech.content.startswith(b"RIFF")
