"""Answers that come in one piece, because nobody listens before their end."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antiphon.agent.output_gate import MOST_BLANK
from antiphon.engines.http import base
from antiphon.errors import AntiphonError, EngineFailed
from antiphon.transport.middleware.app import App
from tests.engines.http.stubs.chat_stub import DIALECTS, standing_in, tcp
from tests.engines.http.stubs.generation import opened, post, server, work
from tests.engines.http.stubs.mutations import cut, mutated
from tests.engines.unix_server import END, STREAM, Reader, Writer, answer, event, request
from tests.support.asgi_client import JSON, Answer, call

pytestmark = pytest.mark.anyio

HELLO = {"role": "assistant", "content": "Hello"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2}}
WHOLE = {"choices": [{"index": 0, "message": HELLO, "finish_reason": "stop"}], "usage": USAGE}
SHORT = 0.05  # seconds
ASKED = b'"content":"hi"'  # by us; an engine is asked other things, too


def told(body: Any) -> bytes:
    return answer(json.dumps(body).encode())


@asynccontextmanager
async def behind(wire: bytes, **settings: Any) -> AsyncIterator[App]:
    """A server whose engine says this to every chat."""

    async def behave(reader: Reader, writer: Writer) -> None:
        while True:
            writer.write(wire if ASKED in await request(reader) else answer(b'{"data":[{"id":"m"}]}'))

    async with tcp(behave) as port, server(f"vllm://127.0.0.1:{port}", **settings) as app:
        yield app


async def chat(app: App, path: str = "/v1/chat/completions", **body: Any) -> Answer:
    asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **body}
    return await call(app, "POST", path, JSON, body=[json.dumps(asked).encode()])


@pytest.mark.parametrize("name", DIALECTS)
async def test_an_engine_streams_only_for_those_who_listen(name: str) -> None:
    async with standing_in(name) as stub, server(stub.url) as app:
        await post(app)
        await chat(app)
        await chat(app, "/v1/messages")
        assert [body["stream"] for body in stub.seen] == [False] * 3
        assert not [body for body in stub.seen if "stream_options" in body]
        stub.seen.clear()
        await post(app, stream=True)
        await chat(app, stream=True)
        await chat(app, "/v1/messages", stream=True)
        assert [body["stream"] for body in stub.seen] == [True] * 3


async def test_what_others_may_follow_or_what_would_be_too_much_at_once_is_streamed() -> None:
    async with standing_in("vllm") as stub, server(stub.url) as app:
        assert (await post(app, top_logprobs=2)).status == 200
        queued = (await post(app, background=True)).json()
        async with asyncio.timeout(30):
            followed = await call(app, "GET", f"/v1/responses/{queued['id']}?stream=true")
        assert b"response.completed" in followed.body
        assert [body["stream"] for body in stub.seen] == [True, True]


async def test_all_of_an_answer_in_one_piece_is_told() -> None:
    calls = [{"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": f"[{n}]"}} for n in range(2)]
    message = {**HELLO, "reasoning_content": "Hm.", "tool_calls": calls}
    details = {"completion_tokens_details": {"reasoning_tokens": 1}}
    body = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": {**USAGE, **details}}
    async with behind(told(body)) as app:
        said = (await post(app, tools=[{"type": "function", "name": "f"}])).json()
    assert [item["type"] for item in said["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert [item["arguments"] for item in said["output"][2:]] == ["[0]", "[1]"]
    usage = said["usage"]
    assert (usage["input_tokens_details"]["cached_tokens"], usage["output_tokens_details"]["reasoning_tokens"]) == (
        2,
        1,
    )


async def test_an_answer_in_one_piece_may_end_with_any_number_of_blanks() -> None:
    """One that goes on like that is broken off, but this one has ended."""
    text, schema = '{"a": 1}' + " " * (2 * MOST_BLANK), {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"name": "f", "schema": schema}
    message = {"role": "assistant", "reasoning_content": "Hm.", "content": text}
    async with behind(told({"choices": [{"message": message, "finish_reason": "stop"}], "usage": USAGE})) as app:
        response = (await post(app, text={"format": {"type": "json_schema", **form}})).json()
        completion = (await chat(app, response_format={"type": "json_schema", "json_schema": form})).json()
    assert (response["status"], response["output"][1]["content"][0]["text"]) == ("completed", text)
    assert completion["choices"][0]["finish_reason"] == "stop"
    assert completion["choices"][0]["message"]["content"] == text


async def test_an_engine_that_streams_all_the_same_is_heard_out() -> None:
    pieces = [{"choices": [{"delta": {"content": word}}]} for word in ("Hel", "lo")]
    last = {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": USAGE}
    wire = STREAM + b"".join(event(json.dumps(one).encode()) for one in [*pieces, last]) + event(b"[DONE]") + END
    async with behind(wire) as app:
        assert (await post(app)).json()["output"][0]["content"][0]["text"] == "Hello"


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
async def test_an_answer_that_did_not_end_well_is_an_error(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MAX_ANSWER_BYTES", 1000)
    async with behind(answer(body)) as app:
        said = await post(app)
        assert (said.status, said.error["code"]) == (500, "server_error")


async def test_whatever_is_done_to_its_bytes_it_has_ended_well_or_is_an_error() -> None:
    chance = random.Random(20)
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]
    message = {**HELLO, "reasoning": "Hm.", "tool_calls": calls}
    sound = json.dumps({"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": USAGE}).encode()
    sent: list[bytes] = []

    async def behave(reader: Reader, writer: Writer) -> None:
        while True:
            asked = ASKED in await request(reader)
            if asked:
                sent.append(mutated(sound, chance))
            for piece in (
                cut(answer(sent[-1]), [chance.randrange(300)]) if asked else [answer(b'{"data":[{"id":"m"}]}')]
            ):
                writer.write(piece)
                await writer.drain()

    fates = Counter[int]()
    async with asyncio.timeout(120), tcp(behave) as port, server(f"vllm://127.0.0.1:{port}") as app:
        for _ in range(400):
            said = await post(app, tools=[{"type": "function", "name": "f"}])
            fates[said.status] += 1
            assert said.json()["status"] in ("completed", "incomplete") if said.status == 200 else said.error["message"]
            assert said.status != 200 or b"finish_reason" in sent[-1]
    assert fates[200] > 20
    assert fates[500] > 20
    assert not fates.keys() - {200, 400, 500}


async def test_it_may_take_longer_than_a_first_token_while_the_engine_is_well() -> None:
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def behave(reader: Reader, writer: Writer) -> None:
        while True:
            if ASKED in await request(reader):
                asked.set()
                await may_answer.wait()
                writer.write(told(WHOLE))
            else:
                writer.write(answer(b'{"data":[{"id":"m"}]}'))

    async with tcp(behave) as port, server(f"vllm://127.0.0.1:{port}", first_token_timeout=SHORT) as app:
        answering = asyncio.create_task(post(app))
        async with asyncio.timeout(30):
            await asked.wait()
            asyncio.get_running_loop().call_later(5 * SHORT, may_answer.set)
            assert (await answering).json()["status"] == "completed"


async def test_it_may_not_take_longer_than_any_response() -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        while ASKED not in await request(reader):
            writer.write(answer(b'{"data":[{"id":"m"}]}'))
        await reader.read()

    settings = {"first_token_timeout": SHORT, "run_timeout": 3 * SHORT}
    async with tcp(behave) as port, opened(f"vllm://127.0.0.1:{port}", **settings) as engine:
        async with asyncio.timeout(30):
            with pytest.raises(EngineFailed, match="did not answer in time"):
                await engine.answer(work())


async def test_a_client_that_leaves_cancels_it() -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def behave(reader: Reader, writer: Writer) -> None:
        while ASKED not in await request(reader):
            writer.write(answer(b'{"data":[{"id":"m"}]}'))
        asked.set()
        await reader.read()
        left.set()

    async with tcp(behave) as port, opened(f"vllm://127.0.0.1:{port}") as engine:
        asking = asyncio.create_task(engine.answer(work()))
        async with asyncio.timeout(30):
            await asked.wait()
            asking.cancel()
            await left.wait()
            with pytest.raises(asyncio.CancelledError):
                await asking


@pytest.mark.parametrize("name", ["vllm", "sglang", "llamacpp-server"])
async def test_at_token_level_a_stream_and_json_say_the_same(name: str) -> None:
    async with standing_in(name) as stub, server(stub.url, engine_level="tokens") as app:
        whole = (await post(app)).json()
        streamed = (await post(app, stream=True)).body.decode()
        last = json.loads(streamed.split("data: ")[-2])["response"]
        assert whole["status"] == last["status"] == "completed"
        assert whole["usage"]["output_tokens"] == last["usage"]["output_tokens"] > 0
        assert whole["output"][0]["content"][0]["text"] == last["output"][0]["content"][0]["text"] != ""


async def test_who_gives_no_answers_in_one_piece_says_so() -> None:
    async with opened("fake") as engine:
        assert not (await engine.capabilities("fake")).wholes
        with pytest.raises(AntiphonError, match="in one piece"):
            await engine.answer(work(model="fake"))


async def test_when_it_began_is_not_told_of_an_answer_in_one_piece() -> None:
    async with behind(told(WHOLE)) as app:
        await post(app)
        metrics = (await call(app, "GET", "/metrics")).body.decode()
        assert "antiphon_time_to_first_token_seconds_count 0" in metrics
        assert "antiphon_e2e_request_latency_seconds_count 1" in metrics
