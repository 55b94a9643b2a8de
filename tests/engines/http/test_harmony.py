"""gpt-oss behind engines that receive and return token ids: Antiphon builds the prompt tokens itself and parses the
output by tokens.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.config import Config
from antiphon.core.harmony import CALL, RETURN, load_vocabulary
from antiphon.core.prompt import Chunk
from antiphon.engines.factory import build_engine
from antiphon.engines.fake.engine import FakeEngine, FakeSettings
from antiphon.errors import StartupError
from antiphon.transport.middleware.app import App
from tests.engines.http.stubs.chat_stub import EngineStub
from tests.engines.http.stubs.dialects import DIALECTS
from tests.engines.http.stubs.generation import open_app
from tests.golden.harmony.cases import decode_tokens, encode_tokens
from tests.support.asgi_client import JSON, AsgiResponse, call
from tests.support.local_servers import serve_tcp

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
TOKEN_LEVEL_ENGINES = ("vllm", "sglang", "llamacpp-server")
MODEL = "openai/gpt-oss-20b"
WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
CALL_OUTPUT = (
    "<|channel|>analysis<|message|>Let us see.<|end|><|start|>assistant"
    '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city":"Kraków 🙂"}<|call|>'
)

MESSAGE_OUTPUT = (
    "<|channel|>analysis<|message|>Let us see.<|end|><|start|>assistant<|channel|>final<|message|>Good day.<|return|>"
)


@asynccontextmanager
async def run_gpt_oss_stub(name: str, model: str = MODEL) -> AsyncIterator[EngineStub]:
    dialect = DIALECTS[name]
    stub = EngineStub(replace(dialect, card={**dialect.card, "id": model}))
    stub.raw.engine = FakeEngine(FakeSettings(level="harmony"))
    async with serve_tcp(stub.serve) as port:
        stub.url = f"{name}://127.0.0.1:{port}"
        yield stub


async def post_request(app: App, **body: Any) -> AsgiResponse:
    content = json.dumps({"model": MODEL, "input": "hi", **body}).encode()
    async with asyncio.timeout(30):
        return await call(app, "POST", "/v1/responses", JSON, body=[content])


def queue_output(stub: EngineStub, output: str, tokens_per_chunk: int = 1) -> None:
    ids = encode_tokens(output)
    stub.raw.engine.says(
        *[Chunk(tokens=ids[at : at + tokens_per_chunk]) for at in range(0, len(ids), tokens_per_chunk)]
    )


def get_prompt_ids(body: Json) -> list[int]:
    ids: list[int] = body["input_ids"] if "input_ids" in body else body["prompt"]
    return ids


@pytest.mark.parametrize("name", TOKEN_LEVEL_ENGINES)
@pytest.mark.shows("D.1", "D.2", "D.5", "D1.1", "D1.2", "C.20")
async def test_a_prompt_is_sent_as_tokens_and_the_output_is_parsed_from_tokens(name: str) -> None:
    async with run_gpt_oss_stub(name) as stub, open_app(stub.url, engine_level="tokens") as app:
        queue_output(stub, MESSAGE_OUTPUT)
        body = (await post_request(app, instructions="Be kind.", reasoning={"effort": "low"})).json()
        assert [item["type"] for item in body["output"]] == ["reasoning", "message"]
        assert body["output"][1]["content"][0]["text"] == "Good day."
        assert body["output"][1]["phase"] == "final_answer"
        (sent,) = stub.raw_bodies
        prompt = decode_tokens(get_prompt_ids(sent))
        assert "\n\nReasoning: low\n\n" in prompt
        assert prompt.endswith("# Instructions\n\nBe kind.<|end|><|start|>user<|message|>hi<|end|><|start|>assistant")
        assert body["usage"]["input_tokens"] == len(get_prompt_ids(sent))
        assert body["usage"]["output_tokens_details"]["reasoning_tokens"] == len(encode_tokens("Let us see."))
        if name != "llamacpp-server":  # on llamacpp-server Antiphon ends the output itself
            assert sent.get("sampling_params", sent)["stop_token_ids"] == [RETURN, CALL]


@pytest.mark.parametrize("name", TOKEN_LEVEL_ENGINES)
@pytest.mark.shows("D.3")
async def test_a_call_is_parsed_however_its_tokens_are_grouped(name: str) -> None:
    async with run_gpt_oss_stub(name) as stub, open_app(stub.url, engine_level="tokens") as app:
        for tokens_per_chunk in (1, 7):
            queue_output(stub, CALL_OUTPUT, tokens_per_chunk)
            body = (await post_request(app, tools=[WEATHER])).json()
            assert [item["type"] for item in body["output"]] == ["reasoning", "function_call"]
            assert body["output"][1]["arguments"] == '{"city":"Kraków 🙂"}'


async def test_llama_cpp_sends_only_the_last_token_of_a_character() -> None:
    """The text of that token is the complete character, and the text is what is used."""
    output = "<|channel|>final<|message|>Kraków 🙂🙃 안녕.<|return|>"
    chunks, pending = [], b""
    for token in encode_tokens(output):
        text = get_token_bytes(token)
        pending += text
        try:
            chunks.append(Chunk(text=pending.decode() if not pending.startswith(b"<|") else "", tokens=(token,)))
            pending = b""
        except UnicodeDecodeError:
            continue
    async with run_gpt_oss_stub("llamacpp-server") as stub, open_app(stub.url, engine_level="tokens") as app:
        stub.raw.engine.says(*chunks)
        body = (await post_request(app)).json()
        assert body["output"][0]["content"][0]["text"] == "Kraków 🙂🙃 안녕."
        assert len(chunks) < len(encode_tokens(output))


def get_token_bytes(token: int) -> bytes:
    text = load_vocabulary().decode_token(token)
    return (text.encode() if isinstance(text, str) else text) or b"<|"


@pytest.mark.parametrize("name", TOKEN_LEVEL_ENGINES)
@pytest.mark.shows("D.17")
async def test_log_probabilities_are_those_of_the_final_text(name: str) -> None:
    async with run_gpt_oss_stub(name) as stub, open_app(stub.url, engine_level="tokens") as app:
        fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
        (part,) = (await post_request(app, **fields)).json()["output"][0]["content"]
        assert "".join([one["token"] for one in part["logprobs"]]) == part["text"] == "You said: hi"


@pytest.mark.parametrize("name", TOKEN_LEVEL_ENGINES)
async def test_antiphon_matches_stop_strings_itself_and_cancels_the_engine_request(name: str) -> None:
    async with run_gpt_oss_stub(name) as stub, open_app(stub.url, engine_level="tokens") as app:
        queue_output(stub, "<|channel|>final<|message|>One stop, two." + " And more." * 2000)
        body = (await post_request(app, stop=["stop"])).json()
        assert body["output"][0]["content"][0]["text"] == "One "
        assert (body["status"], body["usage"]["input_tokens"]) == ("completed", len(get_prompt_ids(stub.raw_bodies[0])))
        async with asyncio.timeout(30):
            while stub.raw.engine.running:  # noqa: ASYNC110 - the fake engine has no event for it
                await asyncio.sleep(0.001)
        assert (stub.raw.engine.running, stub.raw.engine.cancelled) == (0, 1)
        assert "stop" not in stub.raw_bodies[0].get("sampling_params", stub.raw_bodies[0])


@pytest.mark.parametrize(("name", "field"), [("vllm", "response_format"), ("sglang", "sampling_params")])
@pytest.mark.shows("D.12", "D.13")
async def test_a_required_tool_call_is_enforced_by_a_structural_tag(name: str, field: str) -> None:
    async with run_gpt_oss_stub(name) as stub, open_app(stub.url, engine_level="tokens") as app:
        queue_output(stub, CALL_OUTPUT)
        body = (await post_request(app, tools=[WEATHER], tool_choice="required")).json()
        assert [item["type"] for item in body["output"]] == ["reasoning", "function_call"]
        (sent,) = stub.raw_bodies
        assert "to=functions.get_weather" in str(sent[field])
        assert decode_tokens(get_prompt_ids(sent)).endswith("<|start|>assistant")  # the model may reason first


@pytest.mark.shows("D1.1")
async def test_harmony_is_detected_by_the_model_type_that_sglang_reports() -> None:
    dialect = DIALECTS["sglang"]
    asides = {**dialect.asides, "/model_info": {**dialect.asides["/model_info"], "model_type": "gpt_oss"}}
    stub = EngineStub(replace(dialect, asides=asides))
    stub.raw.engine = FakeEngine(FakeSettings(level="harmony"))
    async with serve_tcp(stub.serve) as port, open_app(f"sglang://127.0.0.1:{port}", engine_level="tokens") as app:
        body = (await post_request(app, model="m")).json()
        assert body["output"][0]["content"][0]["text"] == "You said: hi"


@pytest.mark.shows("D1.1")
async def test_at_chat_level_the_engine_handles_harmony_itself() -> None:
    async with run_gpt_oss_stub("vllm") as stub, open_app(stub.url) as app:
        body = (await post_request(app)).json()
        assert body["output"][0]["content"][0]["text"] == "You said: hi"
        assert not stub.raw_bodies


@pytest.mark.shows("D1.1")
async def test_harmony_without_token_ids_is_a_startup_error() -> None:
    with pytest.raises(StartupError, match="add --engine-level tokens"):
        build_engine(Config.from_settings(engine="vllm://127.0.0.1:1", harmony=True))
    with pytest.raises(StartupError, match="the ollama engine returns none"):
        build_engine(Config.from_settings(engine="ollama://127.0.0.1:1", harmony=True))
    with pytest.raises(StartupError, match="--fake-level harmony"):
        await build_engine(Config.from_settings(engine="fake", harmony=True)).open()


@pytest.mark.parametrize("name", TOKEN_LEVEL_ENGINES)
@pytest.mark.shows("D1.1")
async def test_the_operator_may_declare_a_model_as_harmony(name: str) -> None:
    async with run_gpt_oss_stub(name, "mine") as stub, open_app(stub.url, engine_level="tokens", harmony=True) as app:
        body = (await post_request(app, model="mine")).json()
        assert body["output"][0]["phase"] == "final_answer"
