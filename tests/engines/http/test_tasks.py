"""Tasks of engines other than generation, and the probes that detect them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.core.prompt import ChatPrompt, GenerationRequest, Sampling, Segment, TextPrompt, TokenPrompt
from antiphon.engines.base import Engine
from antiphon.engines.fake.tokens import encode
from antiphon.errors import AntiphonError, BadRequest, InvalidValue, UnsupportedParameter
from tests.engines.http.stubs.chat_stub import EngineStub, run_stub
from tests.engines.http.stubs.dialects import DIALECTS, SGLANG, VLLM, Dialect
from tests.engines.http.stubs.generation import open_app, open_engine, post_response
from tests.engines.unix_server import json_response, read_request
from tests.support.asgi_client import call
from tests.support.local_servers import Reader, Writer, serve_tcp

pytestmark = pytest.mark.anyio

TEXT = TextPrompt((Segment("hi", control=True),))
HI = encode((Segment("hi", False),))
CHAT = ChatPrompt(({"role": "user", "content": "hi"},))
TOKENIZING = ("vllm", "sglang", "llamacpp-server")
SCORE_REPLY = {"data": [{"index": 0, "score": 0.5}]}


@asynccontextmanager
async def run_engine(dialect: Dialect, **settings: Any) -> AsyncIterator[tuple[EngineStub, Engine]]:
    stub = EngineStub(dialect)
    async with serve_tcp(stub.serve) as port, open_engine(f"{dialect.name}://127.0.0.1:{port}", **settings) as engine:
        yield stub, engine


@pytest.mark.parametrize("name", TOKENIZING)
@pytest.mark.parametrize("level", ["chat", "tokens"])
async def test_texts_and_chats_are_tokenized_and_tokens_are_detokenized(name: str, level: str) -> None:
    async with run_stub(name) as stub, open_engine(stub.url, engine_level=level) as engine:
        capabilities = await engine.capabilities("m")
        assert {"generate", "tokenize", "detokenize"} <= capabilities.tasks
        assert await engine.tokenize("m", TEXT) == HI
        assert await engine.tokenize("m", TokenPrompt(HI)) == HI
        assert await engine.detokenize("m", HI) == "hi"
        chat = await engine.tokenize("m", CHAT)
        assert await engine.detokenize("m", chat) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        assert await engine.count_tokens("m", TEXT) == len(HI)
        assert await engine.count_tokens("m", TokenPrompt(HI)) == len(HI)


async def test_an_engine_that_tokenizes_only_texts_rejects_chats() -> None:
    async with run_stub("ovms") as stub, open_engine(stub.url) as engine:
        assert await engine.tokenize("m", TEXT) == HI
        with pytest.raises(UnsupportedParameter, match="ovms engine does not support tokenization of chats"):
            await engine.tokenize("m", CHAT)
        with pytest.raises(UnsupportedParameter, match="does not support the task 'detokenize'"):
            await engine.detokenize("m", HI)


@pytest.mark.parametrize("name", ["ollama", "openai"])
async def test_an_engine_that_does_not_tokenize_rejects_the_task(name: str) -> None:
    async with run_stub(name) as stub, open_engine(stub.url) as engine:
        assert "tokenize" not in (await engine.capabilities("m")).tasks
        with pytest.raises(UnsupportedParameter, match=f"{name} engine does not support the task 'tokenize'"):
            await engine.tokenize("m", TEXT)


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.shows("C.27")
async def test_vectors_are_returned_in_the_order_of_their_texts(name: str) -> None:
    path = "/v3/embeddings" if name == "ovms" else "/v1/embeddings"
    async with run_engine(replace(DIALECTS[name], embedding=path)) as (_, engine):
        result = await engine.embed("m", ["a", "b"])
        assert (len(result.vectors), result.tokens) == (2, 2)
        assert result.vectors[0] != result.vectors[1]
        assert result.vectors[1] == (await engine.embed("m", ["b"])).vectors[0]


@pytest.mark.parametrize("name", DIALECTS)
async def test_embedding_options_are_sent_or_rejected_by_name(name: str) -> None:
    path = "/v3/embeddings" if name == "ovms" else "/v1/embeddings"
    async with run_engine(replace(DIALECTS[name], embedding=path)) as (_, engine):
        capabilities = await engine.capabilities("m")
        assert ("dimensions" in capabilities.supported_fields) is (name not in ("ovms", "llamacpp-server"))
        assert ("truncate_prompt_tokens" in capabilities.supported_fields) is (name == "vllm")
        if "dimensions" in capabilities.supported_fields:
            assert len((await engine.embed("m", ["a"], 3)).vectors[0]) == 3
        else:
            with pytest.raises(UnsupportedParameter, match="'dimensions'"):
                await engine.embed("m", ["a"], 3)
        if name in ("ovms", "ollama"):
            with pytest.raises(UnsupportedParameter, match="not token ids"):
                await engine.embed("m", [HI])
        else:
            assert len((await engine.embed("m", [HI])).vectors) == 1


async def test_pass_through_requests_and_replies_are_unchanged() -> None:
    dialect = replace(VLLM, asides={**VLLM.asides, "/score": SCORE_REPLY, "/v1/audio/transcriptions": {"text": "hm"}})
    async with run_engine(dialect) as (stub, engine):
        capabilities = await engine.capabilities("m")
        assert {"score", "transcribe"} <= capabilities.tasks
        assert not {"rerank", "classify", "pooling", "embed", "translate"} & capabilities.tasks
        relayed = await engine.pass_through("m", "score", b'{"model":"m","text_1":"a","text_2":"b"}')
        assert relayed.body == b'{"data":[{"index":0,"score":0.5}]}'
        assert relayed.media_type == "application/json"
        await engine.pass_through("m", "transcribe", b"--x--", "multipart/form-data; boundary=x")
        assert "Content-Type: multipart/form-data; boundary=x" in stub.heads[-1]
        with pytest.raises(AntiphonError):
            await engine.pass_through("m", "pooling", b"{}")


async def test_the_engines_message_about_a_rejected_request_is_passed_on() -> None:
    async with run_engine(replace(VLLM, embedding="/v1/embeddings")) as (_, engine):
        with pytest.raises(BadRequest, match="whatever is missing"):
            await engine.pass_through("m", "embed", b'{"model":"m"}')


@pytest.mark.shows("C.21", "C.22")
@pytest.mark.parametrize("dialect", [
    replace(VLLM, parses_tools=False),
    replace(SGLANG, asides={**SGLANG.asides, "/model_info": {"tool_call_parser": None}}),
], ids=["vllm", "sglang"])  # fmt: skip
async def test_an_engine_without_a_tool_call_parser_rejects_tools(dialect: Dialect) -> None:
    stub = EngineStub(dialect)
    async with serve_tcp(stub.serve) as port, open_app(f"{dialect.name}://127.0.0.1:{port}") as app:
        response = await post_response(app, tools=[{"type": "function", "name": "f"}])
        assert (response.status, response.error["param"]) == (400, "tools")
        assert "--tool-call-parser" in response.error["message"]
        assert (await post_response(app)).status == 200
        assert len(stub.chat_bodies) == 1


@pytest.mark.shows("C.21")
async def test_parsers_that_the_engine_reports_are_capabilities() -> None:
    for dialect, parsers in ((VLLM, {"tools": "yes"}), (SGLANG, {"tools": "qwen", "reasoning": "qwen3"})):
        async with run_engine(dialect) as (_, engine):
            assert (await engine.capabilities("m")).parsers == parsers


@pytest.mark.parametrize("dialect", [
    replace(VLLM, sees=False),
    replace(SGLANG, asides={**SGLANG.asides, "/model_info": {"has_image_understanding": False}}),
], ids=["vllm", "sglang"])  # fmt: skip
async def test_a_model_without_vision_does_not_support_images(dialect: Dialect) -> None:
    async with run_engine(dialect) as (_, engine):
        capabilities = await engine.capabilities("m")
        assert "input_image" not in capabilities.supported_fields
        assert "does not support images" in capabilities.unsupported_reasons["input_image"]


@pytest.mark.shows("C.22")
@pytest.mark.parametrize("deterministic", [True, False])
async def test_sglang_supports_a_seed_only_with_deterministic_inference(deterministic: bool) -> None:
    server_info = {**SGLANG.asides["/server_info"], "enable_deterministic_inference": deterministic}
    stub = EngineStub(replace(SGLANG, asides={**SGLANG.asides, "/server_info": server_info}))
    async with serve_tcp(stub.serve) as port, open_app(f"sglang://127.0.0.1:{port}") as app:
        answer = await post_response(app, seed=3)
        if deterministic:
            assert (answer.status, stub.chat_bodies[0]["seed"]) == (200, 3)
        else:
            assert (answer.status, answer.error["param"]) == (400, "seed")
            assert "--enable-deterministic-inference" in answer.error["message"]
            assert not stub.chat_bodies


async def test_an_sglang_embedding_model_does_not_generate() -> None:
    info = {"is_generation": False}
    async with run_engine(replace(SGLANG, asides={**SGLANG.asides, "/model_info": info})) as (_, engine):
        does = (await engine.capabilities("m")).tasks
        assert "embed" in does
        assert "generate" not in does


@pytest.mark.shows("C.21", "C.22")
async def test_a_vllm_ranking_model_has_only_its_own_tasks() -> None:
    """Chat features are not probed for it."""
    dialect = replace(
        VLLM, generates=False, asides={**VLLM.asides, "/score": SCORE_REPLY, "/rerank": {}, "/classify": {}}
    )
    stub = EngineStub(dialect)
    async with serve_tcp(stub.serve) as port, open_app(f"vllm://127.0.0.1:{port}") as app:
        (shown,) = (await call(app, "GET", "/v1/capabilities")).json()["data"]
        assert {*shown["does"]} == {"score", "rerank", "classify", "tokenize", "detokenize"}
        assert (shown["honours"], shown["lacks"], shown["parsers"]) == ([], {}, {})
        response = await post_response(app)
        assert (response.status, response.error["param"]) == (400, "model")
        assert "does not generate" in response.error["message"]
        assert stub.chat_bodies == []


@pytest.mark.parametrize("level", ["chat", "tokens"])
async def test_a_token_outside_the_vocabulary_never_reaches_sglang(level: str) -> None:
    """Such a token crashes SGLang."""
    async with run_stub("sglang") as stub, open_engine(stub.url, engine_level=level) as engine:
        for token in (2_000_000, -1):
            request = GenerationRequest(model="m", prompt=TokenPrompt((1, token)), sampling=Sampling())
            with pytest.raises(InvalidValue, match=f"{token} is outside the vocabulary") as raised:
                await anext(engine.generate(request))
            assert raised.value.param == "prompt"
            with pytest.raises(InvalidValue, match=f"{token} is outside the vocabulary"):
                await engine.embed("m", ["a", [token]])
        assert stub.raw_bodies == []


@pytest.mark.parametrize(("message", "task"), [
    ("Wrong endpoint. Allowed endpoints: /v[13]/chat/completions", "generate"),
    ("input is missing in request", "embed"),
    ("query field is missing in request", "rerank"),
])  # fmt: skip
async def test_the_task_of_an_ovms_model_is_detected_by_its_error_message(message: str, task: str) -> None:
    async def reject_all(reader: Reader, writer: Writer) -> None:
        while True:
            received = await read_request(reader)
            models = received.startswith(b"/v3/models")
            refusal = json_response(
                b'{"error": "Mediapipe execution failed. %s"}' % message.encode(), "412 Precondition Failed"
            )
            writer.write(json_response(b'{"data":[{"id":"m"}]}') if models else refusal)

    async with serve_tcp(reject_all) as port, open_engine(f"ovms://127.0.0.1:{port}") as engine:
        assert task in (await engine.capabilities("m")).tasks
        assert len({"generate", "embed", "rerank"} & (await engine.capabilities("m")).tasks) == 1


async def test_capabilities_are_not_probed_again_while_nothing_changes() -> None:
    async with run_engine(VLLM) as (stub, engine):
        before = len(stub.heads)
        await engine._monitor._check()  # type: ignore[attr-defined]  # as the monitor does periodically
        assert len(stub.heads) - before == 2  # models and version
        engine._monitor.is_healthy = False  # type: ignore[attr-defined]  # the engine was lost
        await engine._monitor._check()  # type: ignore[attr-defined]
        assert len(stub.heads) - before > 10
