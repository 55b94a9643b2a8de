"""POST /v1/chat/completions over the whole application in this process."""

import asyncio
import json
from typing import Any

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Refusal, Text, Thought
from antiphon.core.prompt import ChatPrompt, Chunk, Counts, Extras, Grammar, JsonSchema
from antiphon.engines.base import Capabilities
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import ContextTooLong, EngineFailed, Unavailable
from antiphon.protocol.types.parts import Logprob
from tests.api.app import Client, api
from tests.api.chat_requests import Dialogue
from tests.oracles.chat import accumulate, check_chat, check_chunk, frames_in
from tests.support.asgi_client import Answer, call

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
DIALOGUE = Dialogue(PATH, HI, check_chat, check_chunk)
made, streamed, refused = DIALOGUE.made, DIALOGUE.streamed, DIALOGUE.refused


def ignored(answer: Answer) -> set[str]:
    return set((answer.header(b"x-antiphon-ignored") or b"").decode().split(", ")) - {""}


@pytest.mark.shows("G.1", "G1.4", "G1.5")
async def test_a_chat_is_answered_as_json() -> None:
    async with api() as server:
        body = await made(server)
    assert body["id"].startswith("chatcmpl-")
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "You said: Hello there", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert body["usage"]["prompt_tokens"] > 0
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]


@pytest.mark.shows("G.1")
async def test_a_stream_says_the_same_as_the_json_body() -> None:
    async with api() as server:
        called = CallStarted(0, "get_weather"), CallDelta(0, "{}"), CallDone(0)
        server.engine.says(Thought("hm"), Text("Hel"), Text("lo"), *called, counts=Counts(input_tokens=7))
        server.engine.repeats()
        chunks = await streamed(server, tools=[WEATHER], stream_options={"include_usage": True})
        body = await made(server, tools=[WEATHER])
    theirs = accumulate(chunks)
    message = body["choices"][0]["message"]
    assert theirs.choices[0].message.content == message["content"] == "Hello"
    assert theirs.choices[0].finish_reason == body["choices"][0]["finish_reason"] == "tool_calls"
    assert message["reasoning"] == message["reasoning_content"] == "hm"
    assert theirs.usage is not None
    assert theirs.usage.to_dict() == body["usage"]
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    assert chunks[-1]["choices"] == []


async def test_without_include_usage_the_last_chunk_is_the_reason_to_finish() -> None:
    async with api() as server:
        chunks = await streamed(server)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert all("usage" not in chunk for chunk in chunks)


async def test_a_running_usage_is_told_where_the_engine_counts() -> None:
    async with api() as server:
        chunks = await streamed(server, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert chunks[2]["usage"]["prompt_tokens"] == chunks[-1]["usage"]["prompt_tokens"] > 0
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks[1:4]] == [1, 2, 3]


@pytest.mark.shows("G.2")
async def test_a_tool_is_called_and_its_output_answered() -> None:
    async with api() as server:
        first = await made(server, tools=[WEATHER])
        (call,) = first["choices"][0]["message"]["tool_calls"]
        assert call["id"].startswith("call_")
        assert json.loads(call["function"]["arguments"]).keys() == {"city"}
        messages = [
            *HI["messages"],
            first["choices"][0]["message"],
            {"role": "tool", "tool_call_id": call["id"], "content": "sunny"},
        ]
        second = await made(server, messages=messages, tools=[WEATHER])
        prompt = server.engine.seen[-1].prompt
    assert second["choices"][0]["finish_reason"] == "stop"
    assert isinstance(prompt, ChatPrompt)
    assert [message["role"] for message in prompt.messages] == ["user", "assistant", "tool"]
    assert prompt.messages[1]["tool_calls"][0]["id"] == prompt.messages[2]["tool_call_id"] == call["id"]


async def test_a_call_of_what_was_not_declared_is_dropped() -> None:
    async with api() as server:
        server.engine.says(CallStarted(0, "rm"), CallDelta(0, "{}"), CallDone(0))
        body = await made(server, tools=[WEATHER])
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "", "refusal": None}
    assert body["choices"][0]["finish_reason"] == "stop"


async def test_the_older_functions_are_called_by_the_older_name() -> None:
    async with api() as server:
        body = await made(server, functions=[WEATHER["function"]])
        chunks = await streamed(server, functions=[WEATHER["function"]])
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"]["name"] == "get_weather"
    assert accumulate(chunks).choices[0].finish_reason == "function_call"


@pytest.mark.shows("G.2")
async def test_several_answers_have_numbers_and_share_their_prompt() -> None:
    async with api() as server:
        one = await made(server, seed=7)
        body = await made(server, n=3, seed=7)
        seeds = [work.sampling.seed for work in server.engine.seen][-3:]
        chunks = await streamed(server, n=3)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert body["usage"]["completion_tokens"] == 3 * one["usage"]["completion_tokens"]
    assert seeds == [7, 8, 9]
    final = accumulate(chunks)
    assert [choice.message.content for choice in final.choices] == ["You said: Hello there"] * 3


@pytest.mark.shows("G.2")
async def test_log_probabilities_are_told_in_both_ways() -> None:
    async with api() as server:
        body = await made(server, logprobs=True, top_logprobs=2, max_tokens=4)
        chunks = await streamed(server, logprobs=True, top_logprobs=2, max_tokens=4)
    (choice,) = body["choices"]
    said = choice["logprobs"]["content"]
    assert "".join(each["token"] for each in said) == choice["message"]["content"]
    assert all(len(each["top_logprobs"]) == 2 and each["bytes"] == [*each["token"].encode()] for each in said)
    assert choice["finish_reason"] == "length"
    streamed_too = [
        each for chunk in chunks for one in chunk["choices"] for each in (one["logprobs"] or {}).get("content", ())
    ]
    assert streamed_too == said


async def test_a_refusal_is_told_as_one() -> None:
    async with api() as server:
        server.engine.says(Refusal("I can"), Refusal("not."))
        body = await made(server)
    assert body["choices"][0]["message"] == {"role": "assistant", "content": None, "refusal": "I cannot."}


async def test_the_model_thinks_through_our_parsers_too() -> None:
    async with api(engine=FakeEngine(FakeSettings(level="text"))) as server:
        server.engine.says(Chunk(text="<think>hm, "), Chunk(text="well</thi"), Chunk(text="nk>\n\nHello"))
        server.engine.repeats()
        body = await made(server)
        hidden = await made(server, include_reasoning=False)
    message = body["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("hm, well", "Hello")
    assert hidden["choices"][0]["message"] == {"role": "assistant", "content": "Hello", "refusal": None}


@pytest.mark.shows("G1.1", "G1.2")
async def test_what_the_engine_passes_on_is_passed_on() -> None:
    extras = Extras(stop_reason="x", prompt_token_ids=[1], system_fingerprint="fp", service_tier="priority")
    async with api() as server:
        server.engine.says(Chunk(text="Hi", extras=extras))
        server.engine.repeats()
        body = await made(server)
        chunks = await streamed(server)
    assert (body["system_fingerprint"], body["service_tier"], body["prompt_token_ids"]) == ("fp", "priority", [1])
    assert body["choices"][0]["stop_reason"] == chunks[-1]["choices"][0]["stop_reason"] == "x"
    assert chunks[-1]["system_fingerprint"] == "fp"


class Willing(FakeEngine):
    """Says that it honours what only others do."""

    async def capabilities(self, model: str) -> Capabilities:
        able = await super().capabilities(model)
        wishes = {
            "logit_bias", "min_tokens", "stop_token_ids", "prompt_logprobs", "return_token_ids", "kv_transfer_params",
            "priority", "cache_salt", "grammar.regex", "grammar.gbnf",
        }  # fmt: skip
        return Capabilities(prompt="chat", honours=able.honours | wishes, context=able.context, counts=True)


async def test_wishes_reach_an_engine_that_grants_them() -> None:
    async with api(engine=Willing()) as server:
        await made(
            server, logit_bias={"5": 1}, min_tokens=1, stop_token_ids=[7], prompt_logprobs=1, return_token_ids=True,
            kv_transfer_params={"a": 1}, priority=2, cache_salt="s", guided_regex="a+", prompt_cache_key="k",
        )  # fmt: skip
        work = server.engine.seen[-1]
    sampling = work.sampling
    assert (sampling.logit_bias, sampling.min_tokens, sampling.stop_token_ids) == ({"5": 1.0}, 1, (7,))
    assert (sampling.prompt_logprobs, sampling.return_token_ids) == (1, True)
    assert (work.kv_transfer_params, work.priority, work.constraint) == ({"a": 1}, 2, Grammar("regex", "a+"))
    assert work.affinity == "k"
    assert work.salt not in (None, "s")


class Unwilling(FakeEngine):
    async def capabilities(self, model: str) -> Capabilities:
        return Capabilities(prompt="chat", honours=frozenset(), lacks={"logit_bias": "It has no such thing."})


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
async def test_what_the_engine_lacks_is_refused_by_name(fields: Any, param: str) -> None:
    async with api(engine=Unwilling()) as server:
        error = await refused(server, **fields)
        assert error["param"] == param
        assert server.engine.requests == 0
        if param == "logit_bias":
            assert "It has no such thing." in error["message"]


async def test_a_schema_reaches_the_engine_and_is_kept_to() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    async with api() as server:
        body = await made(server, response_format=form)
        constraint = server.engine.seen[-1].constraint
    assert constraint == JsonSchema(schema=schema, name="n", strict=True)
    assert json.loads(body["choices"][0]["message"]["content"]).keys() == {"a"}


async def test_what_changes_nothing_is_named_in_a_header() -> None:
    async with api() as server:
        answer = await server.post(PATH, {**HI, "user": "u", "store": True, "invented": 1, "service_tier": "flex"})
        plain = await server.post(PATH, {**HI, "stream": True})
    assert ignored(answer) == {"store", "invented"}
    assert answer.json()["service_tier"] == "flex"
    assert ignored(plain) == set()


@pytest.mark.parametrize("stream", [False, True])
async def test_what_fails_before_the_first_word_is_a_plain_error(stream: bool) -> None:
    async with api() as server:
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
async def test_what_fails_later_is_an_error_in_the_stream_and_then_done() -> None:
    async with api() as server:
        server.engine.says(Text("Hel"), Text("lo"))
        server.engine.fails(EngineFailed("The engine died."), after=1)
        answer = await server.post(PATH, {**HI, "stream": True})
    assert answer.status == 200
    *chunks, fault = frames_in(answer.body)
    assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks] == ["", "Hel"]
    assert fault == {
        "error": {"message": "The engine died.", "type": "server_error", "param": None, "code": "server_error"}
    }


async def test_a_json_body_that_fails_later_is_a_plain_error() -> None:
    async with api() as server:
        server.engine.says(Text("Hel"))
        server.engine.fails(EngineFailed("The engine died."), after=1)
        answer = await server.post(PATH, HI)
    assert answer.status == 500
    assert answer.error["message"] == "The engine died."


async def test_a_client_that_leaves_ends_the_engines_work_at_once() -> None:
    async with api() as server:
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
                client.leaves()
                await client.request
            assert server.engine.running == 0
        assert b'antiphon_responses_total{status="cancelled"} 3' in (await call(server.app, "GET", "/metrics")).body


async def test_a_client_that_leaves_before_the_first_word_ends_it_too() -> None:
    async with api() as server:
        gate = server.engine.holds()
        client = Client(server.app, "POST", PATH, **HI, stream=True)
        async with asyncio.timeout(30):
            await gate.reached.wait()
            client.leaves()
            await client.request
        assert server.engine.running == 0


@pytest.mark.shows("H2.7")
async def test_the_end_of_the_servers_grace_is_told_in_the_stream() -> None:
    async with api() as server:
        server.engine.says(Text("Hel"), Text("lo"))
        gate = server.engine.holds(after=1)
        asking = asyncio.ensure_future(server.post(PATH, {**HI, "stream": True}))
        async with asyncio.timeout(30):
            await gate.reached.wait()
            server.app.lifecycle.interrupt()
            answer = await asking
    fault = frames_in(answer.body)[-1]
    assert fault["error"]["code"] == "service_unavailable"
    assert fault["retry_after"] >= 1, "as the header says that came too early for it"


async def test_nobody_new_comes_in_while_the_server_drains() -> None:
    async with api() as server:
        server.app.guard.close()
        assert (await server.post(PATH, HI)).status == 503


async def test_a_model_that_is_busy_is_a_429_and_several_answers_wait_for_each_other() -> None:
    async with api(engine=FakeEngine(FakeSettings(at_once=1)), queue=0, max_active_sessions=2) as server:
        server.engine.says(Text("Hel"))
        gate = server.engine.holds(after=1)
        asking = asyncio.ensure_future(server.post(PATH, HI))
        async with asyncio.timeout(30):
            await gate.reached.wait()
            busy, again = [await server.post(PATH, HI) for _ in range(2)]
            gate.open()
            await asking
        assert busy.status == 429
        assert again.error == busy.error  # who is turned away takes no room
        assert busy.header(b"retry-after") is not None
        body = await made(server, n=3)
    assert len(body["choices"]) == 3


async def heard(client: Client, *ends: bytes) -> bytes:
    """All that came until each of these had come in turn."""
    body = b""
    async with asyncio.timeout(30):
        for end in ends:
            before = len(body)
            while end not in body[before:]:
                body += (await client.heard.get()).get("body", b"")
    return body


async def test_silence_before_the_first_word_is_broken_by_comments() -> None:
    async with api(ping_interval=0.02) as server:
        gate = server.engine.holds()
        client = Client(server.app, "POST", PATH, **HI, stream=True)
        kept = await heard(client, b": keep-alive\n\n", b": keep-alive\n\n")
        assert kept.replace(b": keep-alive\n\n", b"") == b""
        gate.open()
        rest = await heard(client, b"[DONE]\n\n")
    assert accumulate(frames_in(rest)).choices[0].message.content == "You said: Hello there"


async def test_a_failure_after_such_a_silence_is_told_in_the_stream() -> None:
    async with api(ping_interval=0.02) as server:
        server.engine.answers()
        gate = server.engine.holds()
        server.engine.fails(EngineFailed("The engine died."))
        client = Client(server.app, "POST", PATH, **HI, stream=True)
        await heard(client, b": keep-alive\n\n")
        gate.open()
        (fault,) = frames_in(await heard(client, b"[DONE]\n\n"))
    assert fault["error"]["message"] == "The engine died."


async def test_the_metrics_count_chats_too() -> None:
    async with api() as server:
        body = await made(server)
        server.engine.says(Text("a"), finish="length", counts=Counts(input_tokens=1, output_tokens=1))
        await made(server)
        text = (await call(server.app, "GET", "/metrics")).body.decode()
    assert 'antiphon_responses_total{status="completed"} 1' in text
    assert 'antiphon_responses_total{status="incomplete"} 1' in text
    assert f"antiphon_generation_tokens_total {body['usage']['completion_tokens'] + 1}\n" in text
    assert "antiphon_time_to_first_token_seconds_count 2" in text


async def test_a_large_body_is_read_elsewhere_and_answered_all_the_same() -> None:
    async with api(engine=FakeEngine(FakeSettings(context=None))) as server:
        long = "x" * 400_000
        body = await made(server, messages=[{"role": "user", "content": long}], max_tokens=5)
    assert body["usage"]["prompt_tokens"] > 1000


async def test_a_prompt_that_is_too_long_is_refused_by_its_name() -> None:
    async with api(engine=FakeEngine(FakeSettings(context=64))) as server:
        error = await refused(server, messages=[{"role": "user", "content": "word " * 200}])
        kept = await made(
            server, messages=[{"role": "user", "content": "word " * 200}, HI["messages"][0]], truncation="auto"
        )
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
    assert kept["choices"][0]["message"]["content"] == "You said: Hello there"


@pytest.mark.parametrize("body", [{}, {"messages": []}, {"messages": None}])
async def test_no_messages_are_a_400(body: dict[str, Any]) -> None:
    async with api() as server:
        answer = await server.post(PATH, {"model": "fake", **body})
    assert (answer.status, answer.error["param"]) == (400, "messages")


async def test_an_unknown_model_is_a_404_and_none_is_a_400() -> None:
    class Named(FakeEngine):
        def serves(self, model: str) -> bool:
            return model == "fake"

    async with api(engine=Named()) as server:
        unknown = await server.post(PATH, {**HI, "model": "other"})
        missing = await server.post(PATH, {"messages": HI["messages"]})
    assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")
    assert (missing.status, missing.error["param"]) == (400, "model")


async def test_padding_is_there_for_who_asks_for_it() -> None:
    async with api() as server:
        chunks = await streamed(server, stream_options={"include_obfuscation": True})
    assert all("obfuscation" in chunk for chunk in chunks[1:])


async def test_logprobs_that_the_engine_gives_without_text_are_told() -> None:
    nothing = Logprob(token="", bytes=[], logprob=-1.0)
    async with api() as server:
        server.engine.says(Chunk(text="", logprobs=(nothing,)), Text("a"))
        body = await made(server, logprobs=True)
    assert len(body["choices"][0]["logprobs"]["content"]) == 1
