"""The fake upstream engine of the benchmarks, read with the openai package: it answers as real engines do, streamed and
not.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent, ResponseTextDeltaEvent

from bench.harness.canned_answers import TOKENS, make_answers, make_chunk, make_tokens
from bench.harness.load import CHAT_TOKEN, TOKEN
from bench.harness.upstream import FakeEngineProtocol
from tests.oracles.responses import accumulate, check_event, check_response

pytestmark = pytest.mark.anyio
STREAMED = [model for model in TOKENS if model != "held"]


@pytest.fixture
async def port() -> AsyncIterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    made = make_answers()
    server = await asyncio.get_running_loop().create_server(lambda: FakeEngineProtocol(made), sock=listener)
    yield listener.getsockname()[1]
    server.close()


@pytest.fixture
async def client(port: int) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=60.0) as made:
        yield made


async def stream_events(client: AsyncOpenAI, model: str) -> list[ResponseStreamEvent]:
    return [event async for event in await client.responses.create(model=model, input="hi", stream=True)]


async def stream_chunks(client: AsyncOpenAI, model: str) -> list[ChatCompletionChunk]:
    stream = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "hi"}], stream=True, stream_options={"include_usage": True}
    )
    return [chunk async for chunk in stream]


async def test_the_upstream_lists_its_models(client: AsyncOpenAI) -> None:
    assert tuple([model.id async for model in client.models.list()]) == tuple(TOKENS)


@pytest.mark.parametrize("model", [model for model in STREAMED if model != "paced"])
async def test_the_upstream_streams_valid_responses(client: AsyncOpenAI, model: str) -> None:
    received = [event.to_dict(mode="json") for event in await stream_events(client, model)]
    for event in received:
        check_event(event)
    assert [event["sequence_number"] for event in received] == [*range(len(received))]
    assert accumulate(received).output_text == "".join(make_tokens(model))
    assert [event["delta"] for event in received if event["type"] == "response.output_text.delta"] == make_tokens(model)


@pytest.mark.parametrize("model", [model for model in STREAMED if model != "paced"])
async def test_the_upstream_streams_chat_completions(client: AsyncOpenAI, model: str) -> None:
    received = await stream_chunks(client, model)
    deltas = [piece.choices[0].delta.content for piece in received if piece.choices]
    assert [text for text in deltas if text] == make_tokens(model)
    assert [piece.choices[0].finish_reason for piece in received if piece.choices][-1] == "stop"
    assert received[-1].usage is not None
    assert received[-1].usage.completion_tokens == len(make_tokens(model))


@pytest.mark.parametrize("model", [*TOKENS])
async def test_the_upstream_answers_without_a_stream(client: AsyncOpenAI, model: str) -> None:
    response = await client.responses.create(model=model, input="hi")
    check_response(response.to_dict(mode="json"))
    chat = await client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}])
    assert response.output_text == chat.choices[0].message.content == "".join(make_tokens(model))


async def test_paced_tokens_carry_their_write_time(client: AsyncOpenAI) -> None:
    began = time.perf_counter_ns() // 1000
    deltas = [
        event.delta for event in await stream_events(client, "paced") if isinstance(event, ResponseTextDeltaEvent)
    ]
    deltas += [piece.choices[0].delta.content or "" for piece in await stream_chunks(client, "paced") if piece.choices]
    stamps = [int(text) for text in deltas if text]
    assert len(stamps) == 2 * len(make_tokens("paced"))
    assert stamps == sorted(stamps)
    assert began < stamps[0]
    assert stamps[-1] < time.perf_counter_ns() // 1000


async def test_a_held_stream_sends_one_token_and_waits(client: AsyncOpenAI) -> None:
    stream = await client.responses.create(model="held", input="hi", stream=True)
    iterator = aiter(stream)
    async with asyncio.timeout(60):
        while not isinstance(await anext(iterator), ResponseTextDeltaEvent):
            pass
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await anext(iterator)
    await stream.close()


def test_tokens_are_written_one_by_one() -> None:
    for path, needle in ((b"/v1/responses", TOKEN), (b"/v1/chat/completions", CHAT_TOKEN)):
        assert {write.count(needle.encode()) for write in make_answers()[path][b"medium"].writes} == {1}


async def test_every_response_has_its_own_id(client: AsyncOpenAI) -> None:
    responses = [await client.responses.create(model="brief", input="hi") for _ in range(3)]
    assert len({response.id for response in responses}) == len({response.output[0].id for response in responses}) == 3


def test_a_chunk_begins_with_its_hexadecimal_length() -> None:
    assert make_chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"
