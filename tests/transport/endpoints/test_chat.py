"""Tests POST /v1/chat/completions through the complete application on the fake engine.

Covers `service/completions.py` and `service/prompting/prepared_request.py`.
"""

import asyncio
import json
from typing import Any

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, ReasoningDelta, Refusal, Text
from antiphon.core.prompt import ChatPrompt, Chunk, EngineExtras, Grammar, JsonSchema, TokenCounts
from antiphon.engines.base import Capabilities
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import ContextTooLong, EngineFailed, Unavailable
from antiphon.protocol.types.parts import Logprob
from tests.api.app import Client, run_api
from tests.api.chat_requests import CompletionApi
from tests.oracles.chat import accumulate, check_chat, check_chunk, parse_chunks
from tests.support.asgi_client import AsgiResponse, call

pytestmark = pytest.mark.anyio

HI: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "Hello there"}]}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
PATH = "chat/completions"
CHATS = CompletionApi(PATH, HI, check_chat, check_chunk)
create_chat, stream_chat, expect_error = CHATS.create, CHATS.stream, CHATS.expect_rejection


def read_ignored_fields(answer: AsgiResponse) -> set[str]:
    return set((answer.header(b"x-antiphon-ignored") or b"").decode().split(", ")) - {""}


@pytest.mark.shows("G.1", "G1.4", "G1.5")
async def test_a_chat_completion_is_returned_as_json() -> None:
    async with run_api() as server:
        body = await create_chat(server)
    assert body["id"].startswith("chatcmpl-")
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "You said: Hello there", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert body["usage"]["prompt_tokens"] > 0
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]


@pytest.mark.shows("G.1")
async def test_a_stream_equals_the_json_body() -> None:
    async with run_api() as server:
        tool_call = CallStarted(0, "get_weather"), CallDelta(0, "{}"), CallDone(0)
        server.engine.says(
            ReasoningDelta("hm"), Text("Hel"), Text("lo"), *tool_call, counts=TokenCounts(input_tokens=7)
        )
        server.engine.repeats()
        chunks = await stream_chat(server, tools=[WEATHER], stream_options={"include_usage": True})
        body = await create_chat(server, tools=[WEATHER])
    accumulated = accumulate(chunks)
    message = body["choices"][0]["message"]
    assert accumulated.choices[0].message.content == message["content"] == "Hello"
    assert accumulated.choices[0].finish_reason == body["choices"][0]["finish_reason"] == "tool_calls"
    assert message["reasoning"] == message["reasoning_content"] == "hm"
    assert accumulated.usage is not None
    assert accumulated.usage.to_dict() == body["usage"]
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    assert chunks[-1]["choices"] == []


async def test_without_include_usage_the_last_chunk_has_the_finish_reason() -> None:
    async with run_api() as server:
        chunks = await stream_chat(server)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert all("usage" not in chunk for chunk in chunks)


async def test_continuous_usage_is_sent_when_the_engine_counts_tokens() -> None:
    async with run_api() as server:
        chunks = await stream_chat(server, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert chunks[2]["usage"]["prompt_tokens"] == chunks[-1]["usage"]["prompt_tokens"] > 0
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks[1:4]] == [1, 2, 3]


@pytest.mark.shows("G.2")
async def test_a_chat_continues_with_the_output_of_a_tool_call() -> None:
    async with run_api() as server:
        first = await create_chat(server, tools=[WEATHER])
        (call,) = first["choices"][0]["message"]["tool_calls"]
        assert call["id"].startswith("call_")
        assert json.loads(call["function"]["arguments"]).keys() == {"city"}
        messages = [
            *HI["messages"],
            first["choices"][0]["message"],
            {"role": "tool", "tool_call_id": call["id"], "content": "sunny"},
        ]
        second = await create_chat(server, messages=messages, tools=[WEATHER])
        prompt = server.engine.seen[-1].prompt
    assert second["choices"][0]["finish_reason"] == "stop"
    assert isinstance(prompt, ChatPrompt)
    assert [message["role"] for message in prompt.messages] == ["user", "assistant", "tool"]
    assert prompt.messages[1]["tool_calls"][0]["id"] == prompt.messages[2]["tool_call_id"] == call["id"]


async def test_the_model_sees_an_error_for_a_call_of_an_undeclared_tool() -> None:
    async with run_api() as server:
        server.engine.says(CallStarted(0, "rm -r"), CallDelta(0, "not JSON"), CallDone(0))
        server.engine.says(Text("I cannot."))
        body = await create_chat(server, tools=[WEATHER])
        prompt = server.engine.seen[-1].prompt
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "I cannot.", "refusal": None}
    assert body["choices"][0]["finish_reason"] == "stop"
    assert isinstance(prompt, ChatPrompt)
    (call,) = prompt.messages[-2]["tool_calls"]
    assert (call["function"]["name"][:6], call["function"]["arguments"]) == ("rm_-r_", "{}")
    assert prompt.messages[-1]["tool_call_id"] == call["id"]
    assert "not available" in prompt.messages[-1]["content"]


async def test_legacy_functions_yield_a_function_call() -> None:
    async with run_api() as server:
        body = await create_chat(server, functions=[WEATHER["function"]])
        chunks = await stream_chat(server, functions=[WEATHER["function"]])
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"]["name"] == "get_weather"
    assert accumulate(chunks).choices[0].finish_reason == "function_call"


@pytest.mark.shows("G.2")
async def test_n_choices_are_indexed_and_share_the_prompt_tokens() -> None:
    async with run_api() as server:
        one = await create_chat(server, seed=7)
        body = await create_chat(server, n=3, seed=7)
        seeds = [generation.sampling.seed for generation in server.engine.seen][-3:]
        chunks = await stream_chat(server, n=3)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert body["usage"]["completion_tokens"] == 3 * one["usage"]["completion_tokens"]
    assert seeds == [7, 8, 9]
    final = accumulate(chunks)
    assert [choice.message.content for choice in final.choices] == ["You said: Hello there"] * 3


@pytest.mark.shows("G.2")
async def test_logprobs_are_returned_in_json_and_in_streams() -> None:
    async with run_api() as server:
        body = await create_chat(server, logprobs=True, top_logprobs=2, max_tokens=4)
        chunks = await stream_chat(server, logprobs=True, top_logprobs=2, max_tokens=4)
    (choice,) = body["choices"]
    logprobs = choice["logprobs"]["content"]
    assert "".join(each["token"] for each in logprobs) == choice["message"]["content"]
    assert all(len(each["top_logprobs"]) == 2 and each["bytes"] == [*each["token"].encode()] for each in logprobs)
    assert choice["finish_reason"] == "length"
    streamed_logprobs = [
        each for chunk in chunks for one in chunk["choices"] for each in (one["logprobs"] or {}).get("content", ())
    ]
    assert streamed_logprobs == logprobs


async def test_a_refusal_is_returned_in_the_refusal_field() -> None:
    async with run_api() as server:
        server.engine.says(Refusal("I can"), Refusal("not."))
        body = await create_chat(server)
    assert body["choices"][0]["message"] == {"role": "assistant", "content": None, "refusal": "I cannot."}


async def test_reasoning_is_parsed_from_raw_output() -> None:
    async with run_api(engine=FakeEngine(FakeSettings(level="text"))) as server:
        server.engine.says(Chunk(text="<think>hm, "), Chunk(text="well</thi"), Chunk(text="nk>\n\nHello"))
        server.engine.repeats()
        body = await create_chat(server)
        hidden = await create_chat(server, include_reasoning=False)
    message = body["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("hm, well", "Hello")
    assert hidden["choices"][0]["message"] == {"role": "assistant", "content": "Hello", "refusal": None}


@pytest.mark.shows("G1.1", "G1.2")
async def test_engine_extras_are_passed_through() -> None:
    extras = EngineExtras(stop_reason="x", prompt_token_ids=[1], system_fingerprint="fp", service_tier="priority")
    async with run_api() as server:
        server.engine.says(Chunk(text="Hi", extras=extras))
        server.engine.repeats()
        body = await create_chat(server)
        chunks = await stream_chat(server)
    assert (body["system_fingerprint"], body["service_tier"], body["prompt_token_ids"]) == ("fp", "priority", [1])
    assert body["choices"][0]["stop_reason"] == chunks[-1]["choices"][0]["stop_reason"] == "x"
    assert chunks[-1]["system_fingerprint"] == "fp"


class FullySupportingEngine(FakeEngine):
    """An engine that claims to support fields that the fake engine does not support."""

    async def capabilities(self, model: str) -> Capabilities:
        base = await super().capabilities(model)
        extra_fields = {
            "logit_bias", "min_tokens", "stop_token_ids", "prompt_logprobs", "return_token_ids", "kv_transfer_params",
            "priority", "cache_salt", "grammar.regex", "grammar.gbnf",
        }  # fmt: skip
        return Capabilities(
            level="chat",
            supported_fields=base.supported_fields | extra_fields,
            context=base.context,
            can_count_tokens=True,
        )


async def test_optional_fields_reach_an_engine_that_supports_them() -> None:
    async with run_api(engine=FullySupportingEngine()) as server:
        await create_chat(
            server, logit_bias={"5": 1}, min_tokens=1, stop_token_ids=[7], prompt_logprobs=1, return_token_ids=True,
            kv_transfer_params={"a": 1}, priority=2, cache_salt="s", guided_regex="a+", prompt_cache_key="k",
        )  # fmt: skip
        generation = server.engine.seen[-1]
    sampling = generation.sampling
    assert (sampling.logit_bias, sampling.min_tokens, sampling.stop_token_ids) == ({"5": 1.0}, 1, (7,))
    assert (sampling.prompt_logprobs, sampling.return_token_ids) == (1, True)
    assert (generation.kv_transfer_params, generation.priority, generation.constraint) == (
        {"a": 1},
        2,
        Grammar("regex", "a+"),
    )
    assert generation.affinity == "k"
    assert generation.salt not in (None, "s")


class LimitedEngine(FakeEngine):
    async def capabilities(self, model: str) -> Capabilities:
        return Capabilities(
            level="chat", supported_fields=frozenset(), unsupported_reasons={"logit_bias": "It has no such thing."}
        )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"min_tokens": 1}, "min_tokens"),
        ({"stop_token_ids": [7]}, "stop_token_ids"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"return_token_ids": True}, "return_token_ids"),
        ({"kv_transfer_params": {}}, "kv_transfer_params"),
        ({"priority": 1}, "priority"),
        ({"cache_salt": "s"}, "cache_salt"),
        ({"guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": {"grammar": "x"}}, "structured_outputs.grammar"),
        ({"top_k": 3}, "top_k"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 1}, "top_logprobs"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [WEATHER]}, "tools"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": "data:image/png;base64,AA"}]}
                ]
            },
            "messages[0].content[0].image_url",
        ),
    ],
)
async def test_fields_unsupported_by_the_engine_are_rejected_by_name(fields: Any, param: str) -> None:
    async with run_api(engine=LimitedEngine()) as server:
        error = await expect_error(server, **fields)
        assert error["param"] == param
        assert server.engine.requests == 0
        if param == "logit_bias":
            assert "It has no such thing." in error["message"]


async def test_a_json_schema_reaches_the_engine_and_shapes_the_output() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    response_format = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    async with run_api() as server:
        body = await create_chat(server, response_format=response_format)
        constraint = server.engine.seen[-1].constraint
    assert constraint == JsonSchema(schema=schema, name="n", strict=True)
    assert json.loads(body["choices"][0]["message"]["content"]).keys() == {"a"}


async def test_ignored_fields_are_listed_in_a_header() -> None:
    async with run_api() as server:
        answer = await server.post(PATH, {**HI, "user": "u", "store": True, "invented": 1, "service_tier": "flex"})
        plain = await server.post(PATH, {**HI, "stream": True})
    assert read_ignored_fields(answer) == {"store", "invented"}
    assert answer.json()["service_tier"] == "flex"
    assert read_ignored_fields(plain) == set()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_output_is_a_plain_error(stream: bool) -> None:
    async with run_api() as server:
        server.engine.fails(Unavailable("Not ready.", retry_after=3.0))
        answer = await server.post(PATH, {**HI, "stream": stream})
        assert answer.status == 503
        assert answer.error["code"] == "service_unavailable"
        assert answer.header(b"retry-after") == b"3"
        server.engine.fails(ContextTooLong("The input is too long.", param="input"))
        answer = await server.post(PATH, {**HI, "stream": stream})
    assert answer.status == 400
    assert answer.error["param"] == "messages"


@pytest.mark.shows("G1.7")
async def test_a_later_failure_is_sent_in_the_stream_before_done() -> None:
    async with run_api() as server:
        server.engine.says(Text("Hel"), Text("lo"))
        server.engine.fails(EngineFailed("The engine died."), after=1)
        answer = await server.post(PATH, {**HI, "stream": True})
    assert answer.status == 200
    *chunks, fault = parse_chunks(answer.body)
    assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks] == ["", "Hel"]
    assert fault == {
        "error": {"message": "The engine died.", "type": "server_error", "param": None, "code": "server_error"}
    }


async def test_a_later_failure_of_a_json_request_is_a_plain_error() -> None:
    async with run_api() as server:
        server.engine.says(Text("Hel"))
        server.engine.fails(EngineFailed("The engine died."), after=1)
        answer = await server.post(PATH, HI)
    assert answer.status == 500
    assert answer.error["message"] == "The engine died."


async def test_a_disconnected_client_cancels_the_engine_requests() -> None:
    async with run_api() as server:
        for body in ({"stream": True}, {"stream": False}, {"stream": True, "n": 2}):
            server.engine.says(Text("Hel"), Text("lo"))
            gates = [server.engine.holds(after=1)]
            if "n" in body:
                server.engine.says(Text("Hel"), Text("lo"))
                gates.append(server.engine.holds(after=1))
            client = Client(server.app, "POST", PATH, **{**HI, **body})
            async with asyncio.timeout(30):
                for gate in gates:
                    await gate.reached.wait()
                client.disconnect()
                await client.request
            assert server.engine.running == 0
        assert b'antiphon_responses_total{status="cancelled"} 3' in (await call(server.app, "GET", "/metrics")).body


async def test_a_client_that_disconnects_before_the_first_output_cancels_the_request() -> None:
    async with run_api() as server:
        gate = server.engine.holds()
        client = Client(server.app, "POST", PATH, **HI, stream=True)
        async with asyncio.timeout(30):
            await gate.reached.wait()
            client.disconnect()
            await client.request
        assert server.engine.running == 0


@pytest.mark.shows("H2.7")
async def test_the_end_of_the_shutdown_grace_period_is_sent_in_the_stream() -> None:
    async with run_api() as server:
        server.engine.says(Text("Hel"), Text("lo"))
        gate = server.engine.holds(after=1)
        task = asyncio.ensure_future(server.post(PATH, {**HI, "stream": True}))
        async with asyncio.timeout(30):
            await gate.reached.wait()
            server.app.lifecycle.interrupt()
            answer = await task
    fault = parse_chunks(answer.body)[-1]
    assert fault["error"]["code"] == "service_unavailable"
    assert fault["retry_after"] >= 1, "replaces the Retry-After header, which was sent too early"


async def test_new_requests_are_rejected_while_the_server_drains() -> None:
    async with run_api() as server:
        server.app.authenticator.close()
        assert (await server.post(PATH, HI)).status == 503


async def test_a_busy_model_yields_429_and_n_choices_wait_for_each_other() -> None:
    async with run_api(engine=FakeEngine(FakeSettings(at_once=1)), queue=0, max_active_sessions=2) as server:
        server.engine.says(Text("Hel"))
        gate = server.engine.holds(after=1)
        task = asyncio.ensure_future(server.post(PATH, HI))
        async with asyncio.timeout(30):
            await gate.reached.wait()
            busy, again = [await server.post(PATH, HI) for _ in range(2)]
            gate.open()
            await task
        assert busy.status == 429
        assert again.error == busy.error  # a rejected request occupies no slot
        assert busy.header(b"retry-after") is not None
        body = await create_chat(server, n=3)
    assert len(body["choices"]) == 3


async def read_until(client: Client, *markers: bytes) -> bytes:
    """Read the body until each of `markers` has arrived, in this order, and return it."""
    body = b""
    async with asyncio.timeout(30):
        for marker in markers:
            start = len(body)
            while marker not in body[start:]:
                body += (await client.messages.get()).get("body", b"")
    return body


async def test_an_idle_stream_sends_comments_before_the_first_output() -> None:
    async with run_api(ping_interval=0.02) as server:
        gate = server.engine.holds()
        client = Client(server.app, "POST", PATH, **HI, stream=True)
        comments = await read_until(client, b": keep-alive\n\n", b": keep-alive\n\n")
        assert comments.replace(b": keep-alive\n\n", b"") == b""
        gate.open()
        remaining = await read_until(client, b"[DONE]\n\n")
    assert accumulate(parse_chunks(remaining)).choices[0].message.content == "You said: Hello there"


async def test_a_failure_after_keep_alive_comments_is_sent_in_the_stream() -> None:
    async with run_api(ping_interval=0.02) as server:
        server.engine.answers()
        gate = server.engine.holds()
        server.engine.fails(EngineFailed("The engine died."))
        client = Client(server.app, "POST", PATH, **HI, stream=True)
        await read_until(client, b": keep-alive\n\n")
        gate.open()
        (fault,) = parse_chunks(await read_until(client, b"[DONE]\n\n"))
    assert fault["error"]["message"] == "The engine died."


async def test_metrics_count_chat_completions() -> None:
    async with run_api() as server:
        body = await create_chat(server)
        server.engine.says(Text("a"), finish="length", counts=TokenCounts(input_tokens=1, output_tokens=1))
        await create_chat(server)
        text = (await call(server.app, "GET", "/metrics")).body.decode()
    assert 'antiphon_responses_total{status="completed"} 1' in text
    assert 'antiphon_responses_total{status="incomplete"} 1' in text
    assert f"antiphon_generation_tokens_total {body['usage']['completion_tokens'] + 1}\n" in text
    assert "antiphon_time_to_first_token_seconds_count 2" in text


async def test_a_large_body_that_is_decoded_in_a_thread_is_answered() -> None:
    async with run_api(engine=FakeEngine(FakeSettings(context=None))) as server:
        long = "x" * 400_000
        body = await create_chat(server, messages=[{"role": "user", "content": long}], max_tokens=5)
    assert body["usage"]["prompt_tokens"] > 1000


async def test_an_overlong_prompt_is_rejected_unless_truncation_is_auto() -> None:
    async with run_api(engine=FakeEngine(FakeSettings(context=64))) as server:
        error = await expect_error(server, messages=[{"role": "user", "content": "word " * 200}])
        truncated = await create_chat(
            server, messages=[{"role": "user", "content": "word " * 200}, HI["messages"][0]], truncation="auto"
        )
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
    assert truncated["choices"][0]["message"]["content"] == "You said: Hello there"


@pytest.mark.parametrize("body", [{}, {"messages": []}, {"messages": None}])
async def test_missing_or_empty_messages_are_rejected(body: dict[str, Any]) -> None:
    async with run_api() as server:
        answer = await server.post(PATH, {"model": "fake", **body})
    assert (answer.status, answer.error["param"]) == (400, "messages")


async def test_an_unknown_model_yields_404_and_a_missing_model_400() -> None:
    class SingleModelEngine(FakeEngine):
        def serves(self, model: str) -> bool:
            return model == "fake"

    async with run_api(engine=SingleModelEngine()) as server:
        unknown = await server.post(PATH, {**HI, "model": "other"})
        missing = await server.post(PATH, {"messages": HI["messages"]})
    assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")
    assert (missing.status, missing.error["param"]) == (400, "model")


async def test_obfuscation_padding_is_sent_on_request() -> None:
    async with run_api() as server:
        chunks = await stream_chat(server, stream_options={"include_obfuscation": True})
    assert all("obfuscation" in chunk for chunk in chunks[1:])


async def test_logprobs_without_text_are_returned() -> None:
    empty = Logprob(token="", bytes=[], logprob=-1.0)
    async with run_api() as server:
        server.engine.says(Chunk(text="", logprobs=(empty,)), Text("a"))
        body = await create_chat(server, logprobs=True)
    assert len(body["choices"][0]["logprobs"]["content"]) == 1
