"""POST /v1/completions over the whole application in this process."""

import asyncio
from typing import Any

import pytest

from antiphon.core.deltas import Text
from antiphon.core.prompt import Chunk, Counts, Extras, Segment, TextPrompt, TokenPrompt
from antiphon.engines.base import Capabilities
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import ContextTooLong, EngineFailed
from antiphon.protocol.types.parts import Logprob
from tests.api.app import Client, api
from tests.api.chat_requests import Dialogue
from tests.oracles.chat import check_completion, frames_in

pytestmark = pytest.mark.anyio

ONCE: dict[str, Any] = {"model": "fake", "prompt": "Once upon"}
PATH = "completions"
DIALOGUE = Dialogue(PATH, ONCE, check_completion, check_completion)
made, streamed, refused = DIALOGUE.made, DIALOGUE.streamed, DIALOGUE.refused


def texts(chunks: list[dict[str, Any]]) -> list[str]:
    said: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            said[choice["index"]] = said.get(choice["index"], "") + choice["text"]
    return [said[index] for index in sorted(said)]


@pytest.mark.shows("G.3", "G1.5")
async def test_a_prompt_is_answered_as_it_is() -> None:
    async with api() as server:
        body = await made(server)
        work = server.engine.seen[-1]
    assert body["id"].startswith("cmpl-")
    assert body["choices"][0]["text"] == "You said: Once upon"
    assert work.prompt == TextPrompt((Segment("Once upon", control=True),))
    assert work.sampling.max_tokens == 16


@pytest.mark.shows("G.3")
async def test_a_stream_says_the_same() -> None:
    async with api() as server:
        chunks = await streamed(server, stream_options={"include_usage": True})
        body = await made(server)
    assert texts(chunks) == [body["choices"][0]["text"]]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == body["usage"]["completion_tokens"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]][-2:] == [None, "stop"]


async def test_several_prompts_have_several_answers_each() -> None:
    async with api() as server:
        body = await made(server, prompt=["one", "two"], n=2)
        alone = [await made(server, prompt=prompt) for prompt in ("one", "two")]
        chunks = await streamed(server, prompt=["one", "two"], n=2)
    meant = ["You said: one", "You said: one", "You said: two", "You said: two"]
    assert [choice["text"] for choice in body["choices"]] == texts(chunks) == meant
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["prompt_tokens"] == sum(each["usage"]["prompt_tokens"] for each in alone)
    assert body["usage"]["completion_tokens"] == 2 * sum(each["usage"]["completion_tokens"] for each in alone)


@pytest.mark.parametrize(
    ("prompt", "meant"), [([97, 98], [(97, 98)]), ([[97, 98]], [(97, 98)]), ([[97], [98, 99]], [(97,), (98, 99)])]
)
async def test_prompts_may_be_ids_of_tokens(prompt: Any, meant: list[tuple[int, ...]]) -> None:
    async with api() as server:
        for _ in meant:
            server.engine.says(Text("a"))
        body = await made(server, prompt=prompt)
        prompts = [work.prompt for work in server.engine.seen]
    assert prompts == [TokenPrompt(tokens) for tokens in meant]
    assert len(body["choices"]) == len(meant)


async def test_an_echo_repeats_the_prompt() -> None:
    async with api() as server:
        body = await made(server, echo=True)
        chunks = await streamed(server, echo=True)
    assert [body["choices"][0]["text"]] == texts(chunks) == ["Once uponYou said: Once upon"]


class Telling(FakeEngine):
    """Knows what tokens mean, and how likely those of a prompt are."""

    async def capabilities(self, model: str) -> Capabilities:
        able = await super().capabilities(model)
        honours = able.honours | {"prompt_logprobs"}
        return Capabilities(prompt="text", takes=able.takes, honours=honours, does=able.does | {"detokenize"})

    async def detokenize(self, model: str, tokens: Any) -> str:
        return "".join(chr(token) for token in tokens)


async def test_an_echo_of_tokens_is_their_text() -> None:
    async with api(engine=Telling()) as server:
        server.engine.says(Text("!"))
        body = await made(server, prompt=[72, 105], echo=True)
    assert body["choices"][0]["text"] == "Hi!"


async def test_an_echo_with_log_probabilities_has_those_of_the_prompt() -> None:
    prompt = [None, {"5": {"logprob": -1.5, "decoded_token": "i"}}]
    said = Logprob(token="!", bytes=[33], logprob=-0.5)
    async with api(engine=Telling()) as server:
        server.engine.says(Chunk(text="!", logprobs=(said,), extras=Extras(prompt_logprobs=prompt)))
        body = await made(server, prompt="Hi", echo=True, logprobs=1)
        assert server.engine.seen[-1].sampling.prompt_logprobs == 1
    assert body["choices"][0]["logprobs"] == {
        "text_offset": [0, 1, 2],
        "token_logprobs": [None, -1.5, -0.5],
        "tokens": ["H", "i", "!"],
        "top_logprobs": [None, {"i": -1.5}, {"!": -0.5}],
    }


async def test_log_probabilities_are_four_lists() -> None:
    async with api() as server:
        body = await made(server, logprobs=2, max_tokens=3)
        chunks = await streamed(server, logprobs=2, max_tokens=3)
    (choice,) = body["choices"]
    told = choice["logprobs"]
    assert "".join(told["tokens"]) == choice["text"]
    assert told["text_offset"] == [choice["text"].index(token) for token in told["tokens"]]
    assert all(token in top for token, top in zip(told["tokens"], told["top_logprobs"], strict=True))
    pieces = [one["logprobs"] for chunk in chunks for one in chunk["choices"] if one["logprobs"]]
    assert [offset for piece in pieces for offset in piece["text_offset"]] == told["text_offset"]


async def test_the_best_of_several_answers_are_kept() -> None:
    async with api() as server:
        for text, logprob in (("worst", -9.0), ("best", -0.1), ("good", -1.0)):
            said = Logprob(token=text, bytes=[], logprob=logprob)
            server.engine.says(Chunk(text=text, logprobs=(said,)), counts=Counts(input_tokens=2, output_tokens=1))
        body = await made(server, best_of=3, n=2)
        assert [work.sampling.logprobs for work in server.engine.seen] == [0, 0, 0]
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [(0, "best"), (1, "good")]
    assert body["choices"][0]["logprobs"] is None
    assert body["usage"]["completion_tokens"] == 3


class ChatsOnly(FakeEngine):
    async def capabilities(self, model: str) -> Capabilities:
        return Capabilities(prompt="chat", honours=frozenset())


class TextsOnly(FakeEngine):
    async def capabilities(self, model: str) -> Capabilities:
        return Capabilities(prompt="text", honours=frozenset())


class Wordless(FakeEngine):
    async def capabilities(self, model: str) -> Capabilities:
        return Capabilities(prompt="tokens", honours=frozenset())


@pytest.mark.parametrize(
    ("engine", "fields", "param"),
    [
        (ChatsOnly, {}, "model"),
        (TextsOnly, {"prompt": [1]}, "prompt"),
        (TextsOnly, {"logprobs": 1}, "logprobs"),
        (TextsOnly, {"best_of": 2}, "best_of"),
        (TextsOnly, {"echo": True, "logprobs": 0}, "logprobs"),
        (FakeEngine, {"echo": True, "logprobs": 0}, "echo"),
        (Wordless, {"prompt": [97], "echo": True}, "echo"),
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
async def test_what_cannot_be_honoured_is_refused_by_name(engine: type[FakeEngine], fields: Any, param: str) -> None:
    async with api(engine=engine()) as server:
        assert (await refused(server, **fields))["param"] == param
        assert server.engine.requests == 0


async def test_a_prompt_that_is_too_long_is_refused_by_its_name() -> None:
    async with api(engine=FakeEngine(FakeSettings(context=32))) as server:
        for prompt in ("word " * 200, [97] * 32):
            error = await refused(server, prompt=prompt)
            assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
        server.engine.fails(ContextTooLong("Too long.", param="input"))
        assert (await refused(server))["param"] == "prompt"


async def test_an_answer_gets_no_more_room_than_is_left() -> None:
    async with api(engine=FakeEngine(FakeSettings(context=32))) as server:
        server.engine.says(Text("a"))
        await made(server, prompt=[97] * 30, max_tokens=20)
        assert server.engine.seen[-1].sampling.max_tokens == 2


async def test_the_operators_word_on_the_length_of_answers_holds_here_too() -> None:
    async with api(default_output_tokens=5, max_output_tokens=8) as server:
        await made(server)
        await made(server, max_tokens=100)
        assert [work.sampling.max_tokens for work in server.engine.seen] == [5, 8]


async def test_a_failure_in_the_stream_is_told_and_then_done() -> None:
    async with api() as server:
        server.engine.says(Text("Hel"))
        server.engine.fails(EngineFailed("The engine died."), after=1)
        answer = await server.post(PATH, {**ONCE, "stream": True})
    assert frames_in(answer.body)[-1]["error"]["message"] == "The engine died."


async def test_a_client_that_leaves_ends_the_engines_work() -> None:
    async with api() as server:
        gates = []
        for _ in range(2):
            server.engine.says(Text("Hel"), Text("lo"))
            gates.append(server.engine.holds(after=1))
        client = Client(server.app, "POST", PATH, **{**ONCE, "prompt": ["a", "b"]}, stream=True)
        async with asyncio.timeout(30):
            for gate in gates:
                await gate.reached.wait()
            client.leaves()
            await client.request
        assert server.engine.running == 0


async def test_what_changes_nothing_is_named_in_a_header() -> None:
    async with api() as server:
        answer = await server.post(PATH, {**ONCE, "user": "u", "invented": 1})
    assert answer.header(b"x-antiphon-ignored") == b"invented"
