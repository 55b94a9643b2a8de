"""Unstreamed requests to the engine, which are used if no client reads the response before its end."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antiphon.agent.output_gate import MAX_BLANK_CHARS
from antiphon.engines.http import base
from antiphon.errors import EngineFailed
from antiphon.transport.middleware.app import App
from tests.engines.http.stubs.chat_stub import run_stub
from tests.engines.http.stubs.dialects import DIALECTS
from tests.engines.http.stubs.generation import make_request, open_app, open_engine, post_response, run_generation
from tests.engines.http.stubs.mutations import mutate, split_bytes
from tests.engines.unix_server import END, STREAM, json_response, read_request, sse_event
from tests.support.asgi_client import JSON, AsgiResponse, call
from tests.support.local_servers import Reader, Writer, serve_tcp

pytestmark = pytest.mark.anyio

HELLO = {"role": "assistant", "content": "Hello"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2}}
COMPLETION = {"choices": [{"index": 0, "message": HELLO, "finish_reason": "stop"}], "usage": USAGE}
SHORT_SECONDS = 0.05  # seconds
CHAT_MARKER = b'"content":"hi"'  # identifies the requests of these tests; all others are probes


def encode_response(body: Any) -> bytes:
    return json_response(json.dumps(body).encode())


@asynccontextmanager
async def open_app_with_reply(reply: bytes, **settings: Any) -> AsyncIterator[App]:
    """Open a server whose engine sends this reply to every chat."""

    async def behave(reader: Reader, writer: Writer) -> None:
        while True:
            writer.write(
                reply if CHAT_MARKER in await read_request(reader) else json_response(b'{"data":[{"id":"m"}]}')
            )

    async with serve_tcp(behave) as port, open_app(f"vllm://127.0.0.1:{port}", **settings) as app:
        yield app


async def post_chat(app: App, path: str = "/v1/chat/completions", **body: Any) -> AsgiResponse:
    fields = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **body}
    return await call(app, "POST", path, JSON, body=[json.dumps(fields).encode()])


@pytest.mark.parametrize("name", DIALECTS)
async def test_the_engine_streams_only_for_clients_that_stream(name: str) -> None:
    async with run_stub(name) as stub, open_app(stub.url) as app:
        await post_response(app)
        await post_chat(app)
        await post_chat(app, "/v1/messages")
        assert [body["stream"] for body in stub.chat_bodies] == [False] * 3
        assert not [body for body in stub.chat_bodies if "stream_options" in body]
        stub.chat_bodies.clear()
        await post_response(app, stream=True)
        await post_chat(app, stream=True)
        await post_chat(app, "/v1/messages", stream=True)
        assert [body["stream"] for body in stub.chat_bodies] == [True] * 3


async def test_background_responses_and_logprobs_are_streamed_by_the_engine() -> None:
    async with run_stub("vllm") as stub, open_app(stub.url) as app:
        assert (await post_response(app, top_logprobs=2)).status == 200
        queued = (await post_response(app, background=True)).json()
        async with asyncio.timeout(30):
            followed = await call(app, "GET", f"/v1/responses/{queued['id']}?stream=true")
        assert b"response.completed" in followed.body
        assert [body["stream"] for body in stub.chat_bodies] == [True, True]


async def test_all_parts_of_an_unstreamed_response_are_returned() -> None:
    calls = [{"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": f"[{n}]"}} for n in range(2)]
    message = {**HELLO, "reasoning_content": "Hm.", "tool_calls": calls}
    details = {"completion_tokens_details": {"reasoning_tokens": 1}}
    body = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": {**USAGE, **details}}
    async with open_app_with_reply(encode_response(body)) as app:
        response = (await post_response(app, tools=[{"type": "function", "name": "f"}])).json()
    assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert [item["arguments"] for item in response["output"][2:]] == ["[0]", "[1]"]
    usage = response["usage"]
    assert (usage["input_tokens_details"]["cached_tokens"], usage["output_tokens_details"]["reasoning_tokens"]) == (
        2,
        1,
    )


async def test_an_unstreamed_response_may_end_with_any_number_of_blanks() -> None:
    """A stream with so many blanks is broken off, but this response has already ended."""
    text, schema = (
        '{"a": 1}' + " " * (2 * MAX_BLANK_CHARS),
        {"type": "object", "properties": {"a": {"type": "integer"}}},
    )
    form = {"name": "f", "schema": schema}
    message = {"role": "assistant", "reasoning_content": "Hm.", "content": text}
    async with open_app_with_reply(
        encode_response({"choices": [{"message": message, "finish_reason": "stop"}], "usage": USAGE})
    ) as app:
        response = (await post_response(app, text={"format": {"type": "json_schema", **form}})).json()
        completion = (await post_chat(app, response_format={"type": "json_schema", "json_schema": form})).json()
    assert (response["status"], response["output"][1]["content"][0]["text"]) == ("completed", text)
    assert completion["choices"][0]["finish_reason"] == "stop"
    assert completion["choices"][0]["message"]["content"] == text


async def test_an_engine_that_streams_nevertheless_is_read_to_the_end() -> None:
    pieces = [{"choices": [{"delta": {"content": text}}]} for text in ("Hel", "lo")]
    last = {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": USAGE}
    reply = (
        STREAM + b"".join(sse_event(json.dumps(one).encode()) for one in [*pieces, last]) + sse_event(b"[DONE]") + END
    )
    async with open_app_with_reply(reply) as app:
        assert (await post_response(app)).json()["output"][0]["content"][0]["text"] == "Hello"


@pytest.mark.parametrize(
    "body",
    [
        b"{]",
        b"[]",
        b"{}",
        b'{"choices":[]}',
        b'{"error":{"message":"boom"}}',
        json.dumps({"choices": [{"message": HELLO}]}).encode(),
        json.dumps({"choices": [{"message": HELLO, "finish_reason": "tired"}]}).encode(),
        b'{"choices":[{"message":{"content":"' + b"x" * 2000 + b'"},"finish_reason":"stop"}]}',
    ],
)
async def test_an_incomplete_or_invalid_unstreamed_response_is_an_error(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "MAX_ANSWER_BYTES", 1000)
    async with open_app_with_reply(json_response(body)) as app:
        response = await post_response(app)
        assert (response.status, response.error["code"]) == (500, "server_error")


@pytest.mark.seeds(1, first=20)
async def test_a_mutated_unstreamed_response_completes_or_is_an_error(seed: int) -> None:
    rng = random.Random(seed)
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]
    message = {**HELLO, "reasoning": "Hm.", "tool_calls": calls}
    valid_body = json.dumps({"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": USAGE}).encode()
    sent: list[bytes] = []

    async def behave(reader: Reader, writer: Writer) -> None:
        while True:
            is_chat = CHAT_MARKER in await read_request(reader)
            if is_chat:
                sent.append(mutate(valid_body, rng))
            for piece in (
                split_bytes(json_response(sent[-1]), [rng.randrange(300)])
                if is_chat
                else [json_response(b'{"data":[{"id":"m"}]}')]
            ):
                writer.write(piece)
                await writer.drain()

    statuses = Counter[int]()
    async with asyncio.timeout(120), serve_tcp(behave) as port, open_app(f"vllm://127.0.0.1:{port}") as app:
        for _ in range(400):
            response = await post_response(app, tools=[{"type": "function", "name": "f"}])
            statuses[response.status] += 1
            assert (
                response.json()["status"] in ("completed", "incomplete")
                if response.status == 200
                else response.error["message"]
            )
            assert response.status != 200 or b"finish_reason" in sent[-1]
    assert statuses[200] > 20
    assert statuses[500] > 20
    assert not statuses.keys() - {200, 400, 500}


async def test_a_healthy_engine_may_exceed_the_first_token_timeout_unstreamed() -> None:
    requested, may_answer = asyncio.Event(), asyncio.Event()

    async def behave(reader: Reader, writer: Writer) -> None:
        while True:
            if CHAT_MARKER in await read_request(reader):
                requested.set()
                await may_answer.wait()
                writer.write(encode_response(COMPLETION))
            else:
                writer.write(json_response(b'{"data":[{"id":"m"}]}'))

    async with (
        serve_tcp(behave) as port,
        open_app(f"vllm://127.0.0.1:{port}", first_token_timeout=SHORT_SECONDS) as app,
    ):
        answering = asyncio.create_task(post_response(app))
        async with asyncio.timeout(30):
            await requested.wait()
            asyncio.get_running_loop().call_later(5 * SHORT_SECONDS, may_answer.set)
            assert (await answering).json()["status"] == "completed"


async def test_an_unstreamed_response_is_bounded_by_the_run_timeout() -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        while CHAT_MARKER not in await read_request(reader):
            writer.write(json_response(b'{"data":[{"id":"m"}]}'))
        await reader.read()

    settings = {"first_token_timeout": SHORT_SECONDS, "run_timeout": 3 * SHORT_SECONDS}
    async with serve_tcp(behave) as port, open_engine(f"vllm://127.0.0.1:{port}", **settings) as engine:
        async with asyncio.timeout(30):
            error = (await run_generation(engine, make_request(buffered=True))).error
        assert isinstance(error, EngineFailed)
        assert "did not answer in time" in error.message


async def test_cancelling_an_unstreamed_request_closes_the_engine_connection() -> None:
    requested, disconnected = asyncio.Event(), asyncio.Event()

    async def behave(reader: Reader, writer: Writer) -> None:
        while CHAT_MARKER not in await read_request(reader):
            writer.write(json_response(b'{"data":[{"id":"m"}]}'))
        requested.set()
        await reader.read()
        disconnected.set()

    async with serve_tcp(behave) as port, open_engine(f"vllm://127.0.0.1:{port}") as engine:
        generation = asyncio.create_task(run_generation(engine, make_request(buffered=True)))
        async with asyncio.timeout(30):
            await requested.wait()
            generation.cancel()
            await disconnected.wait()
            with pytest.raises(asyncio.CancelledError):
                await generation


@pytest.mark.parametrize("name", ["vllm", "sglang", "llamacpp-server"])
async def test_at_token_level_a_stream_and_json_return_the_same_response(name: str) -> None:
    async with run_stub(name) as stub, open_app(stub.url, engine_level="tokens") as app:
        whole = (await post_response(app)).json()
        streamed = (await post_response(app, stream=True)).body.decode()
        last = json.loads(streamed.split("data: ")[-2])["response"]
        assert whole["status"] == last["status"] == "completed"
        assert whole["usage"]["output_tokens"] == last["usage"]["output_tokens"] > 0
        assert whole["output"][0]["content"][0]["text"] == last["output"][0]["content"][0]["text"] != ""


async def test_the_time_to_first_token_is_not_measured_for_unstreamed_responses() -> None:
    async with open_app_with_reply(encode_response(COMPLETION)) as app:
        await post_response(app)
        metrics = (await call(app, "GET", "/metrics")).body.decode()
        assert "antiphon_time_to_first_token_seconds_count 0" in metrics
        assert "antiphon_e2e_request_latency_seconds_count 1" in metrics
