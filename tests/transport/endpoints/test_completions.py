"""Tests POST /v1/completions through the complete application on the fake engine.

Covers `core/dialects/completions_request.py`, `core/dialects/dialect.py`, `service/completions.py` and
`service/prompting/raw_prompts.py`.
"""

import asyncio
from typing import Any

import pytest

from antiphon.core.deltas import Text
from antiphon.core.prompt import Chunk, EngineExtras, Segment, TextPrompt, TokenCounts, TokenPrompt
from antiphon.engines.base import Capabilities
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import ContextTooLong, EngineFailed
from antiphon.protocol.types.parts import Logprob
from tests.api.app import Client, run_api
from tests.api.chat_requests import CompletionApi
from tests.oracles.chat import check_completion, parse_chunks

pytestmark = pytest.mark.anyio

REQUEST: dict[str, Any] = {"model": "fake", "prompt": "Once upon"}
PATH = "completions"
COMPLETIONS = CompletionApi(PATH, REQUEST, check_completion, check_completion)
create_completion, stream_completion, expect_error = (
    COMPLETIONS.create,
    COMPLETIONS.stream,
    COMPLETIONS.expect_rejection,
)


def join_texts(chunks: list[dict[str, Any]]) -> list[str]:
    by_index: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            by_index[choice["index"]] = by_index.get(choice["index"], "") + choice["text"]
    return [by_index[index] for index in sorted(by_index)]


@pytest.mark.shows("G.3", "G1.5")
async def test_a_prompt_is_sent_to_the_engine_unchanged() -> None:
    async with run_api() as server:
        body = await create_completion(server)
        generation = server.engine.seen[-1]
    assert body["id"].startswith("cmpl-")
    assert body["choices"][0]["text"] == "You said: Once upon"
    assert generation.prompt == TextPrompt((Segment("Once upon", control=True),))
    assert generation.sampling.max_tokens == 16


@pytest.mark.shows("G.3")
async def test_a_stream_equals_the_json_body() -> None:
    async with run_api() as server:
        chunks = await stream_completion(server, stream_options={"include_usage": True})
        body = await create_completion(server)
    assert join_texts(chunks) == [body["choices"][0]["text"]]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == body["usage"]["completion_tokens"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]][-2:] == [None, "stop"]


async def test_each_of_several_prompts_gets_n_choices() -> None:
    async with run_api() as server:
        body = await create_completion(server, prompt=["one", "two"], n=2)
        alone = [await create_completion(server, prompt=prompt) for prompt in ("one", "two")]
        chunks = await stream_completion(server, prompt=["one", "two"], n=2)
    expected = ["You said: one", "You said: one", "You said: two", "You said: two"]
    assert [choice["text"] for choice in body["choices"]] == join_texts(chunks) == expected
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["prompt_tokens"] == sum(each["usage"]["prompt_tokens"] for each in alone)
    assert body["usage"]["completion_tokens"] == 2 * sum(each["usage"]["completion_tokens"] for each in alone)


@pytest.mark.parametrize(
    ("prompt", "expected"), [([97, 98], [(97, 98)]), ([[97, 98]], [(97, 98)]), ([[97], [98, 99]], [(97,), (98, 99)])]
)
async def test_prompts_may_be_token_ids(prompt: Any, expected: list[tuple[int, ...]]) -> None:
    async with run_api() as server:
        for _ in expected:
            server.engine.says(Text("a"))
        body = await create_completion(server, prompt=prompt)
        prompts = [generation.prompt for generation in server.engine.seen]
    assert prompts == [TokenPrompt(tokens) for tokens in expected]
    assert len(body["choices"]) == len(expected)


async def test_an_echo_repeats_the_prompt() -> None:
    async with run_api() as server:
        body = await create_completion(server, echo=True)
        chunks = await stream_completion(server, echo=True)
    assert [body["choices"][0]["text"]] == join_texts(chunks) == ["Once uponYou said: Once upon"]


class DetokenizingEngine(FakeEngine):
    """An engine that detokenizes and returns the logprobs of a prompt."""

    async def capabilities(self, model: str) -> Capabilities:
        base = await super().capabilities(model)
        honours = base.supported_fields | {"prompt_logprobs"}
        return Capabilities(
            level="text", other_levels=base.other_levels, supported_fields=honours, tasks=base.tasks | {"detokenize"}
        )

    async def detokenize(self, model: str, tokens: Any) -> str:
        return "".join(chr(token) for token in tokens)


async def test_an_echo_of_token_ids_is_their_text() -> None:
    async with run_api(engine=DetokenizingEngine()) as server:
        server.engine.says(Text("!"))
        body = await create_completion(server, prompt=[72, 105], echo=True)
    assert body["choices"][0]["text"] == "Hi!"


async def test_an_echo_with_logprobs_includes_the_prompt_logprobs() -> None:
    prompt = [None, {"5": {"logprob": -1.5, "decoded_token": "i"}}]
    generated = Logprob(token="!", bytes=[33], logprob=-0.5)
    async with run_api(engine=DetokenizingEngine()) as server:
        server.engine.says(Chunk(text="!", logprobs=(generated,), extras=EngineExtras(prompt_logprobs=prompt)))
        body = await create_completion(server, prompt="Hi", echo=True, logprobs=1)
        assert server.engine.seen[-1].sampling.prompt_logprobs == 1
    assert body["choices"][0]["logprobs"] == {
        "text_offset": [0, 1, 2],
        "token_logprobs": [None, -1.5, -0.5],
        "tokens": ["H", "i", "!"],
        "top_logprobs": [None, {"i": -1.5}, {"!": -0.5}],
    }


async def test_logprobs_are_returned_as_four_lists() -> None:
    async with run_api() as server:
        body = await create_completion(server, logprobs=2, max_tokens=3)
        chunks = await stream_completion(server, logprobs=2, max_tokens=3)
    (choice,) = body["choices"]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert logprobs["text_offset"] == [choice["text"].index(token) for token in logprobs["tokens"]]
    assert all(token in top for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True))
    pieces = [one["logprobs"] for chunk in chunks for one in chunk["choices"] if one["logprobs"]]
    assert [offset for piece in pieces for offset in piece["text_offset"]] == logprobs["text_offset"]


async def test_best_of_returns_the_most_likely_choices() -> None:
    async with run_api() as server:
        for text, logprob in (("worst", -9.0), ("best", -0.1), ("good", -1.0)):
            entry = Logprob(token=text, bytes=[], logprob=logprob)
            server.engine.says(Chunk(text=text, logprobs=(entry,)), counts=TokenCounts(input_tokens=2, output_tokens=1))
        body = await create_completion(server, best_of=3, n=2)
        assert [generation.sampling.logprobs for generation in server.engine.seen] == [0, 0, 0]
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [(0, "best"), (1, "good")]
    assert body["choices"][0]["logprobs"] is None
    assert body["usage"]["completion_tokens"] == 3


class ChatOnlyEngine(FakeEngine):
    async def capabilities(self, model: str) -> Capabilities:
        return Capabilities(level="chat", supported_fields=frozenset())


class TextOnlyEngine(FakeEngine):
    async def capabilities(self, model: str) -> Capabilities:
        return Capabilities(level="text", supported_fields=frozenset())


class TokenOnlyEngine(FakeEngine):
    async def capabilities(self, model: str) -> Capabilities:
        return Capabilities(level="tokens", supported_fields=frozenset())


@pytest.mark.parametrize(
    ("engine", "fields", "param"),
    [
        (ChatOnlyEngine, {}, "model"),
        (TextOnlyEngine, {"prompt": [1]}, "prompt"),
        (TextOnlyEngine, {"logprobs": 1}, "logprobs"),
        (TextOnlyEngine, {"best_of": 2}, "best_of"),
        (TextOnlyEngine, {"echo": True, "logprobs": 0}, "logprobs"),
        (FakeEngine, {"echo": True, "logprobs": 0}, "echo"),
        (TokenOnlyEngine, {"prompt": [97], "echo": True}, "echo"),
        (FakeEngine, {"suffix": "x"}, "suffix"),
        (FakeEngine, {"prompt": ""}, "prompt"),
        (FakeEngine, {"prompt": []}, "prompt"),
        (FakeEngine, {"prompt": ["a", ""]}, "prompt[1]"),
        (FakeEngine, {"prompt": ["a", 1]}, "prompt[1]"),
        (FakeEngine, {"prompt": [1, "a"]}, "prompt"),
        (FakeEngine, {"prompt": [[]]}, "prompt[0]"),
        (FakeEngine, {"prompt": [-1]}, "prompt[0]"),
        (FakeEngine, {"prompt": ["a"] * 129}, "prompt"),
        (FakeEngine, {"prompt": ["a"] * 9, "n": 16}, "prompt"),
        (FakeEngine, {"prompt": None}, "prompt"),
        (FakeEngine, {"n": 2, "best_of": 1}, "best_of"),
        (FakeEngine, {"best_of": 2, "stream": True}, "best_of"),
        (FakeEngine, {"echo": True, "logprobs": 1, "stream": True}, "echo"),
        (FakeEngine, {"max_tokens": 10**9}, "max_tokens"),
        (FakeEngine, {"add_special_tokens": False}, "add_special_tokens"),
        (FakeEngine, {"logprobs": 21}, "logprobs"),
    ],
)
async def test_invalid_or_unsupported_fields_are_rejected_by_name(
    engine: type[FakeEngine], fields: Any, param: str
) -> None:
    async with run_api(engine=engine()) as server:
        assert (await expect_error(server, **fields))["param"] == param
        assert server.engine.requests == 0


async def test_an_overlong_prompt_is_rejected_by_name() -> None:
    async with run_api(engine=FakeEngine(FakeSettings(context=32))) as server:
        for prompt in ("word " * 200, [97] * 32):
            error = await expect_error(server, prompt=prompt)
            assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
        server.engine.fails(ContextTooLong("Too long.", param="input"))
        assert (await expect_error(server))["param"] == "prompt"


async def test_max_tokens_is_clamped_to_the_remaining_context() -> None:
    async with run_api(engine=FakeEngine(FakeSettings(context=32))) as server:
        server.engine.says(Text("a"))
        await create_completion(server, prompt=[97] * 30, max_tokens=20)
        assert server.engine.seen[-1].sampling.max_tokens == 2


async def test_the_configured_output_limits_apply() -> None:
    async with run_api(default_output_tokens=5, max_output_tokens=8) as server:
        await create_completion(server)
        await create_completion(server, max_tokens=100)
        assert [generation.sampling.max_tokens for generation in server.engine.seen] == [5, 8]


async def test_a_failure_in_the_stream_is_sent_before_done() -> None:
    async with run_api() as server:
        server.engine.says(Text("Hel"))
        server.engine.fails(EngineFailed("The engine died."), after=1)
        answer = await server.post(PATH, {**REQUEST, "stream": True})
    assert parse_chunks(answer.body)[-1]["error"]["message"] == "The engine died."


async def test_a_disconnected_client_cancels_the_engine_requests() -> None:
    async with run_api() as server:
        gates = []
        for _ in range(2):
            server.engine.says(Text("Hel"), Text("lo"))
            gates.append(server.engine.holds(after=1))
        client = Client(server.app, "POST", PATH, **{**REQUEST, "prompt": ["a", "b"]}, stream=True)
        async with asyncio.timeout(30):
            for gate in gates:
                await gate.reached.wait()
            client.disconnect()
            await client.request
        assert server.engine.running == 0


async def test_ignored_fields_are_listed_in_a_header() -> None:
    async with run_api() as server:
        answer = await server.post(PATH, {**REQUEST, "user": "u", "invented": 1})
    assert answer.header(b"x-antiphon-ignored") == b"invented"
