"""The fake engine of the benchmarks says what real ones say: as the openai package reads it, whole and in pieces."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent, ResponseTextDeltaEvent

from bench.harness.canned_answers import JOINED, MODELS, answers, chunk, words
from bench.harness.load import CHAT_TOKEN, TOKEN
from bench.harness.upstream import Upstream
from tests.oracles.responses import accumulate, check_event, check_response

pytestmark = pytest.mark.anyio
STREAMED = [model for model in MODELS if model != "held"]


@pytest.fixture
async def port() -> AsyncIterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    made = answers()
    server = await asyncio.get_running_loop().create_server(lambda: Upstream(made), sock=listener)
    yield listener.getsockname()[1]
    server.close()


@pytest.fixture
async def client(port: int) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=60.0) as made:
        yield made


async def events(client: AsyncOpenAI, model: str) -> list[ResponseStreamEvent]:
    return [event async for event in await client.responses.create(model=model, input="hi", stream=True)]


async def chunks(client: AsyncOpenAI, model: str) -> list[ChatCompletionChunk]:
    asked = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "hi"}], stream=True, stream_options={"include_usage": True}
    )
    return [chunk async for chunk in asked]


async def test_it_lists_its_models(client: AsyncOpenAI) -> None:
    assert tuple([model.id async for model in client.models.list()]) == MODELS


@pytest.mark.parametrize("model", [model for model in STREAMED if model != "paced"])
async def test_it_streams_responses(client: AsyncOpenAI, model: str) -> None:
    told = [event.to_dict(mode="json") for event in await events(client, model)]
    for event in told:
        check_event(event)
    assert [event["sequence_number"] for event in told] == [*range(len(told))]
    assert accumulate(told).output_text == "".join(words(model))
    assert [event["delta"] for event in told if event["type"] == "response.output_text.delta"] == words(model)


@pytest.mark.parametrize("model", [model for model in STREAMED if model != "paced"])
async def test_it_streams_chats(client: AsyncOpenAI, model: str) -> None:
    told = await chunks(client, model)
    said = [piece.choices[0].delta.content for piece in told if piece.choices]
    assert [word for word in said if word] == words(model)
    assert [piece.choices[0].finish_reason for piece in told if piece.choices][-1] == "stop"
    assert told[-1].usage is not None
    assert told[-1].usage.completion_tokens == len(words(model))


@pytest.mark.parametrize("model", MODELS)
async def test_it_answers_at_once_where_no_stream_is_asked_for(client: AsyncOpenAI, model: str) -> None:
    response = await client.responses.create(model=model, input="hi")
    check_response(response.to_dict(mode="json"))
    chat = await client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}])
    assert response.output_text == chat.choices[0].message.content == "".join(words(model))


async def test_paced_tokens_say_when_they_were_written(client: AsyncOpenAI) -> None:
    began = time.perf_counter_ns() // 1000
    said = [event.delta for event in await events(client, "paced") if isinstance(event, ResponseTextDeltaEvent)]
    said += [piece.choices[0].delta.content or "" for piece in await chunks(client, "paced") if piece.choices]
    stamps = [int(word) for word in said if word]
    assert len(stamps) == 2 * len(words("paced"))
    assert stamps == sorted(stamps)
    assert began < stamps[0]
    assert stamps[-1] < time.perf_counter_ns() // 1000


async def test_a_held_stream_gives_one_token_and_waits(client: AsyncOpenAI) -> None:
    stream = await client.responses.create(model="held", input="hi", stream=True)
    heard = aiter(stream)
    async with asyncio.timeout(60):
        while not isinstance(await anext(heard), ResponseTextDeltaEvent):
            pass
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await anext(heard)
    await stream.close()


def test_tokens_are_written_one_by_one_or_several_together() -> None:
    for path, needle in ((b"/v1/responses", TOKEN), (b"/v1/chat/completions", CHAT_TOKEN)):
        made = answers()[path]
        assert {write.count(needle.encode()) for write in made[b"one"].writes} == {1}
        assert {write.count(needle.encode()) for write in made[b"joined"].writes} == {JOINED}
        assert len(made[b"brief"].writes) == 1


def test_a_chunk_says_its_length_in_sixteens() -> None:
    assert chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"
