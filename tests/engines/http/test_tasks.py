"""What engines do beside generating, and how it is found out whether they do."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.core.prompt import ChatPrompt, Sampling, Segment, TextPrompt, TokenPrompt, Work
from antiphon.engines.base import Engine
from antiphon.engines.fake.tokens import encode
from antiphon.errors import AntiphonError, BadRequest, InvalidValue, UnsupportedParameter
from tests.engines.http.stubs.chat_stub import Stub, standing_in, tcp
from tests.engines.http.stubs.dialects import DIALECTS, SGLANG, VLLM, Dialect
from tests.engines.http.stubs.generation import opened, post, server
from tests.engines.unix_server import Reader, Writer, answer, request
from tests.support.asgi_client import call

pytestmark = pytest.mark.anyio

TEXT = TextPrompt((Segment("hi", control=True),))
HI = encode((Segment("hi", False),))
CHAT = ChatPrompt(({"role": "user", "content": "hi"},))
TOKENIZING = ("vllm", "sglang", "llamacpp-server")
SCORED = {"data": [{"index": 0, "score": 0.5}]}


@asynccontextmanager
async def over(dialect: Dialect, **settings: Any) -> AsyncIterator[tuple[Stub, Engine]]:
    stub = Stub(dialect)
    async with tcp(stub.serve) as port, opened(f"{dialect.name}://127.0.0.1:{port}", **settings) as engine:
        yield stub, engine


@pytest.mark.parametrize("name", TOKENIZING)
@pytest.mark.parametrize("level", ["chat", "tokens"])
async def test_texts_and_chats_become_tokens_and_tokens_text(name: str, level: str) -> None:
    async with standing_in(name) as stub, opened(stub.url, engine_level=level) as engine:
        able = await engine.capabilities("m")
        assert {"generate", "tokenize", "detokenize"} <= able.does
        assert await engine.tokenize("m", TEXT) == HI
        assert await engine.tokenize("m", TokenPrompt(HI)) == HI
        assert await engine.detokenize("m", HI) == "hi"
        chat = await engine.tokenize("m", CHAT)
        assert await engine.detokenize("m", chat) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        assert await engine.count("m", TEXT) == len(HI)
        assert await engine.count("m", TokenPrompt(HI)) == len(HI)


async def test_who_tokenizes_texts_only_says_so_of_chats() -> None:
    async with standing_in("ovms") as stub, opened(stub.url) as engine:
        assert await engine.tokenize("m", TEXT) == HI
        with pytest.raises(UnsupportedParameter, match="ovms engine does not tokenize chats"):
            await engine.tokenize("m", CHAT)
        with pytest.raises(UnsupportedParameter, match="does not detokenize"):
            await engine.detokenize("m", HI)


@pytest.mark.parametrize("name", ["ollama", "openai"])
async def test_who_does_not_tokenize_says_so(name: str) -> None:
    async with standing_in(name) as stub, opened(stub.url) as engine:
        assert "tokenize" not in (await engine.capabilities("m")).does
        with pytest.raises(UnsupportedParameter, match=f"{name} engine does not tokenize"):
            await engine.tokenize("m", TEXT)


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.shows("C.27")
async def test_vectors_come_in_the_order_of_their_texts(name: str) -> None:
    path = "/v3/embeddings" if name == "ovms" else "/v1/embeddings"
    async with over(replace(DIALECTS[name], embedding=path)) as (_, engine):
        made = await engine.embed("m", ["a", "b"])
        assert (len(made.vectors), made.tokens) == (2, 2)
        assert made.vectors[0] != made.vectors[1]
        assert made.vectors[1] == (await engine.embed("m", ["b"])).vectors[0]


@pytest.mark.parametrize("name", DIALECTS)
async def test_what_shapes_a_vector_is_sent_or_refused_by_name(name: str) -> None:
    path = "/v3/embeddings" if name == "ovms" else "/v1/embeddings"
    async with over(replace(DIALECTS[name], embedding=path)) as (_, engine):
        able = await engine.capabilities("m")
        assert ("dimensions" in able.honours) is (name not in ("ovms", "llamacpp-server"))
        assert ("truncate_prompt_tokens" in able.honours) is (name == "vllm")
        if "dimensions" in able.honours:
            assert len((await engine.embed("m", ["a"], 3)).vectors[0]) == 3
        else:
            with pytest.raises(UnsupportedParameter, match="'dimensions'"):
                await engine.embed("m", ["a"], 3)
        if name in ("ovms", "ollama"):
            with pytest.raises(UnsupportedParameter, match="not token ids"):
                await engine.embed("m", [HI])
        else:
            assert len((await engine.embed("m", [HI])).vectors) == 1


async def test_what_is_handed_through_is_handed_through_as_it_is() -> None:
    dialect = replace(VLLM, asides={**VLLM.asides, "/score": SCORED, "/v1/audio/transcriptions": {"text": "hm"}})
    async with over(dialect) as (stub, engine):
        able = await engine.capabilities("m")
        assert {"score", "transcribe"} <= able.does
        assert not {"rerank", "classify", "pooling", "embed", "translate"} & able.does
        relayed = await engine.relay("m", "score", b'{"model":"m","text_1":"a","text_2":"b"}')
        assert relayed.body == b'{"data":[{"index":0,"score":0.5}]}'
        assert relayed.media_type == "application/json"
        await engine.relay("m", "transcribe", b"--x--", "multipart/form-data; boundary=x")
        assert "Content-Type: multipart/form-data; boundary=x" in stub.heads[-1]
        with pytest.raises(AntiphonError):
            await engine.relay("m", "pooling", b"{}")


async def test_what_an_engine_says_about_a_request_that_it_refuses_is_passed_on() -> None:
    async with over(replace(VLLM, embedding="/v1/embeddings")) as (_, engine):
        with pytest.raises(BadRequest, match="whatever is missing"):
            await engine.relay("m", "embed", b'{"model":"m"}')


@pytest.mark.shows("C.21", "C.22")
@pytest.mark.parametrize("dialect", [
    replace(VLLM, parses_tools=False),
    replace(SGLANG, asides={**SGLANG.asides, "/model_info": {"tool_call_parser": None}}),
], ids=["vllm", "sglang"])  # fmt: skip
async def test_who_was_started_without_a_parser_of_tool_calls_gets_no_tools(dialect: Dialect) -> None:
    stub = Stub(dialect)
    async with tcp(stub.serve) as port, server(f"{dialect.name}://127.0.0.1:{port}") as app:
        told = await post(app, tools=[{"type": "function", "name": "f"}])
        assert (told.status, told.error["param"]) == (400, "tools")
        assert "--tool-call-parser" in told.error["message"]
        assert (await post(app)).status == 200
        assert len(stub.seen) == 1


@pytest.mark.shows("C.21")
async def test_who_tells_its_parsers_is_quoted() -> None:
    for dialect, parsers in ((VLLM, {"tools": "yes"}), (SGLANG, {"tools": "qwen", "reasoning": "qwen3"})):
        async with over(dialect) as (_, engine):
            assert (await engine.capabilities("m")).parsers == parsers


@pytest.mark.parametrize("dialect", [
    replace(VLLM, sees=False),
    replace(SGLANG, asides={**SGLANG.asides, "/model_info": {"has_image_understanding": False}}),
], ids=["vllm", "sglang"])  # fmt: skip
async def test_a_model_that_does_not_see_gets_no_pictures(dialect: Dialect) -> None:
    async with over(dialect) as (_, engine):
        able = await engine.capabilities("m")
        assert "input_image" not in able.honours
        assert "sees no images" in able.lacks["input_image"]


@pytest.mark.shows("C.22")
@pytest.mark.parametrize("keeps", [True, False])
async def test_sglang_takes_a_seed_if_it_keeps_to_it(keeps: bool) -> None:
    told = {**SGLANG.asides["/server_info"], "enable_deterministic_inference": keeps}
    stub = Stub(replace(SGLANG, asides={**SGLANG.asides, "/server_info": told}))
    async with tcp(stub.serve) as port, server(f"sglang://127.0.0.1:{port}") as app:
        answer = await post(app, seed=3)
        if keeps:
            assert (answer.status, stub.seen[0]["seed"]) == (200, 3)
        else:
            assert (answer.status, answer.error["param"]) == (400, "seed")
            assert "--enable-deterministic-inference" in answer.error["message"]
            assert not stub.seen


async def test_a_model_of_sglang_that_embeds_does_not_generate() -> None:
    info = {"is_generation": False}
    async with over(replace(SGLANG, asides={**SGLANG.asides, "/model_info": info})) as (_, engine):
        does = (await engine.capabilities("m")).does
        assert "embed" in does
        assert "generate" not in does


@pytest.mark.shows("C.21", "C.22")
async def test_a_model_of_vllm_that_ranks_is_shown_as_that_and_nothing_else() -> None:
    """And is asked nothing about chats."""
    ranks = replace(VLLM, generates=False, asides={**VLLM.asides, "/score": SCORED, "/rerank": {}, "/classify": {}})
    stub = Stub(ranks)
    async with tcp(stub.serve) as port, server(f"vllm://127.0.0.1:{port}") as app:
        (shown,) = (await call(app, "GET", "/v1/capabilities")).json()["data"]
        assert {*shown["does"]} == {"score", "rerank", "classify", "tokenize", "detokenize"}
        assert (shown["honours"], shown["lacks"], shown["parsers"]) == ([], {}, {})
        told = await post(app)
        assert (told.status, told.error["param"]) == (400, "model")
        assert "does not generate" in told.error["message"]
        assert stub.seen == []


@pytest.mark.parametrize("level", ["chat", "tokens"])
async def test_a_token_that_is_in_no_vocabulary_never_reaches_sglang(level: str) -> None:
    """It would be the end of it."""
    async with standing_in("sglang") as stub, opened(stub.url, engine_level=level) as engine:
        for token in (2_000_000, -1):
            work = Work(model="m", prompt=TokenPrompt((1, token)), sampling=Sampling())
            with pytest.raises(InvalidValue, match=f"{token} is not in the vocabulary") as raised:
                await anext(engine.generate(work))
            assert raised.value.param == "prompt"
            with pytest.raises(InvalidValue, match=f"{token} is not in the vocabulary"):
                await engine.embed("m", ["a", [token]])
        assert stub.completed == []


@pytest.mark.parametrize(("words", "deed"), [
    ("Wrong endpoint. Allowed endpoints: /v[13]/chat/completions", "generate"),
    ("input is missing in request", "embed"),
    ("query field is missing in request", "rerank"),
])  # fmt: skip
async def test_what_a_model_of_ovms_is_for_its_words_tell(words: str, deed: str) -> None:
    async def wordy(reader: Reader, writer: Writer) -> None:
        while True:
            asked = await request(reader)
            models = asked.startswith(b"/v3/models")
            refusal = answer(b'{"error": "Mediapipe execution failed. %s"}' % words.encode(), "412 Precondition Failed")
            writer.write(answer(b'{"data":[{"id":"m"}]}') if models else refusal)

    async with tcp(wordy) as port, opened(f"ovms://127.0.0.1:{port}") as engine:
        assert deed in (await engine.capabilities("m")).does
        assert len({"generate", "embed", "rerank"} & (await engine.capabilities("m")).does) == 1


async def test_what_was_learnt_is_not_asked_again_while_nothing_changes() -> None:
    async with over(VLLM) as (stub, engine):
        asked = len(stub.heads)
        await engine._watch._look()  # type: ignore[attr-defined]  # as the watch does now and then
        assert len(stub.heads) - asked == 2  # models and version
        engine._watch.well = False  # type: ignore[attr-defined]  # it was gone
        await engine._watch._look()  # type: ignore[attr-defined]
        assert len(stub.heads) - asked > 10
