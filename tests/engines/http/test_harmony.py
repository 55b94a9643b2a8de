"""gpt-oss behind servers that take and give token ids: prompts are ours to the token, answers are read by tokens."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.config import Config
from antiphon.core.harmony import CALL, RETURN, vocabulary
from antiphon.core.prompt import Chunk
from antiphon.engines.fake.engine import FakeEngine, FakeSettings
from antiphon.errors import StartupError
from antiphon.transport.middleware.app import App
from antiphon.wiring import build_engine
from tests.engines.http.stubs.chat_stub import Stub, tcp
from tests.engines.http.stubs.dialects import DIALECTS
from tests.engines.http.stubs.generation import server
from tests.golden.harmony.cases import spelled, tokens
from tests.support.asgi_client import JSON, Answer, call

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
LEVELLED = ("vllm", "sglang", "llamacpp-server")
MODEL = "openai/gpt-oss-20b"
WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
SAID = (
    "<|channel|>analysis<|message|>Let us see.<|end|><|start|>assistant"
    '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city":"Kraków 🙂"}<|call|>'
)

ANSWER = (
    "<|channel|>analysis<|message|>Let us see.<|end|><|start|>assistant<|channel|>final<|message|>Good day.<|return|>"
)


@asynccontextmanager
async def gpt_oss(name: str, model: str = MODEL) -> AsyncIterator[Stub]:
    dialect = DIALECTS[name]
    stub = Stub(replace(dialect, card={**dialect.card, "id": model}))
    stub.raw.engine = FakeEngine(FakeSettings(level="harmony"))
    async with tcp(stub.serve) as port:
        stub.url = f"{name}://127.0.0.1:{port}"
        yield stub


async def ask(app: App, **body: Any) -> Answer:
    asked = json.dumps({"model": MODEL, "input": "hi", **body}).encode()
    async with asyncio.timeout(30):
        return await call(app, "POST", "/v1/responses", JSON, body=[asked])


def says(stub: Stub, said: str, together: int = 1) -> None:
    ids = tokens(said)
    stub.raw.engine.says(*[Chunk(tokens=ids[at : at + together]) for at in range(0, len(ids), together)])


def prompt_of(body: Json) -> list[int]:
    ids: list[int] = body["input_ids"] if "input_ids" in body else body["prompt"]
    return ids


@pytest.mark.parametrize("name", LEVELLED)
@pytest.mark.shows("D.1", "D.2", "D.5", "D1.1", "D1.2", "C.20")
async def test_a_prompt_goes_out_as_tokens_and_the_answer_is_read_by_tokens(name: str) -> None:
    async with gpt_oss(name) as stub, server(stub.url, engine_level="tokens") as app:
        says(stub, ANSWER)
        body = (await ask(app, instructions="Be kind.", reasoning={"effort": "low"})).json()
        assert [item["type"] for item in body["output"]] == ["reasoning", "message"]
        assert body["output"][1]["content"][0]["text"] == "Good day."
        assert body["output"][1]["phase"] == "final_answer"
        (sent,) = stub.completed
        asked = spelled(prompt_of(sent))
        assert "\n\nReasoning: low\n\n" in asked
        assert asked.endswith("# Instructions\n\nBe kind.<|end|><|start|>user<|message|>hi<|end|><|start|>assistant")
        assert body["usage"]["input_tokens"] == len(prompt_of(sent))
        assert body["usage"]["output_tokens_details"]["reasoning_tokens"] == len(tokens("Let us see."))
        if name != "llamacpp-server":  # where Antiphon ends the answer
            assert sent.get("sampling_params", sent)["stop_token_ids"] == [RETURN, CALL]


@pytest.mark.parametrize("name", LEVELLED)
@pytest.mark.shows("D.3")
async def test_a_call_is_read_whatever_came_together(name: str) -> None:
    async with gpt_oss(name) as stub, server(stub.url, engine_level="tokens") as app:
        for together in (1, 7):
            says(stub, SAID, together)
            body = (await ask(app, tools=[WEATHER])).json()
            assert [item["type"] for item in body["output"]] == ["reasoning", "function_call"]
            assert body["output"][1]["arguments"] == '{"city":"Kraków 🙂"}'


async def test_llama_cpp_tells_only_the_last_token_of_a_character() -> None:
    """Its text is whole then, and that is what counts."""
    said = "<|channel|>final<|message|>Kraków 🙂🙃 안녕.<|return|>"
    spelling, told = [], b""
    for token in tokens(said):
        word = spelled_bytes(token)
        told += word
        try:
            spelling.append(Chunk(text=told.decode() if not told.startswith(b"<|") else "", tokens=(token,)))
            told = b""
        except UnicodeDecodeError:
            continue
    async with gpt_oss("llamacpp-server") as stub, server(stub.url, engine_level="tokens") as app:
        stub.raw.engine.says(*spelling)
        body = (await ask(app)).json()
        assert body["output"][0]["content"][0]["text"] == "Kraków 🙂🙃 안녕."
        assert len(spelling) < len(tokens(said))


def spelled_bytes(token: int) -> bytes:
    word = vocabulary().word(token)
    return (word.encode() if isinstance(word, str) else word) or b"<|"


@pytest.mark.parametrize("name", LEVELLED)
@pytest.mark.shows("D.17")
async def test_log_probabilities_are_those_of_the_answer(name: str) -> None:
    async with gpt_oss(name) as stub, server(stub.url, engine_level="tokens") as app:
        asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
        (part,) = (await ask(app, **asked)).json()["output"][0]["content"]
        assert "".join([one["token"] for one in part["logprobs"]]) == part["text"] == "You said: hi"


@pytest.mark.parametrize("name", LEVELLED)
async def test_a_stop_string_is_looked_for_here_and_the_server_told_when_it_was_found(name: str) -> None:
    async with gpt_oss(name) as stub, server(stub.url, engine_level="tokens") as app:
        says(stub, "<|channel|>final<|message|>One stop, two." + " And more." * 2000)
        body = (await ask(app, stop=["stop"])).json()
        assert body["output"][0]["content"][0]["text"] == "One "
        assert (body["status"], body["usage"]["input_tokens"]) == ("completed", len(prompt_of(stub.completed[0])))
        async with asyncio.timeout(30):
            while stub.raw.engine.running:  # noqa: ASYNC110 - it says nothing when it is done
                await asyncio.sleep(0.001)
        assert (stub.raw.engine.running, stub.raw.engine.cancelled) == (0, 1)
        assert "stop" not in stub.completed[0].get("sampling_params", stub.completed[0])


@pytest.mark.parametrize(("name", "field"), [("vllm", "response_format"), ("sglang", "sampling_params")])
@pytest.mark.shows("D.12", "D.13")
async def test_a_tool_that_must_be_called_is_called_by_a_tag_where_there_are_tags(name: str, field: str) -> None:
    async with gpt_oss(name) as stub, server(stub.url, engine_level="tokens") as app:
        says(stub, SAID)
        body = (await ask(app, tools=[WEATHER], tool_choice="required")).json()
        assert [item["type"] for item in body["output"]] == ["reasoning", "function_call"]
        (sent,) = stub.completed
        assert "to=functions.get_weather" in str(sent[field])
        assert spelled(prompt_of(sent)).endswith("<|start|>assistant")  # it may think first


@pytest.mark.shows("D1.1")
async def test_sglang_tells_what_model_it_has() -> None:
    dialect = DIALECTS["sglang"]
    asides = {**dialect.asides, "/model_info": {**dialect.asides["/model_info"], "model_type": "gpt_oss"}}
    stub = Stub(replace(dialect, asides=asides))
    stub.raw.engine = FakeEngine(FakeSettings(level="harmony"))
    async with tcp(stub.serve) as port, server(f"sglang://127.0.0.1:{port}", engine_level="tokens") as app:
        body = (await ask(app, model="m")).json()
        assert body["output"][0]["content"][0]["text"] == "You said: hi"


@pytest.mark.shows("D1.1")
async def test_at_chat_level_the_server_speaks_harmony_by_itself() -> None:
    async with gpt_oss("vllm") as stub, server(stub.url) as app:
        body = (await ask(app)).json()
        assert body["output"][0]["content"][0]["text"] == "You said: hi"
        assert not stub.completed


@pytest.mark.shows("D1.1")
async def test_harmony_that_an_operator_wants_where_there_are_no_token_ids_is_said_at_the_start() -> None:
    with pytest.raises(StartupError, match="add --engine-level tokens"):
        build_engine(Config(engine="vllm://127.0.0.1:1", harmony=True))
    with pytest.raises(StartupError, match="the ollama engine tells none"):
        build_engine(Config(engine="ollama://127.0.0.1:1", harmony=True))
    with pytest.raises(StartupError, match="--fake-level harmony"):
        await build_engine(Config(engine="fake", harmony=True)).open()


@pytest.mark.parametrize("name", LEVELLED)
@pytest.mark.shows("D1.1")
async def test_an_operator_may_say_that_a_model_speaks_harmony(name: str) -> None:
    async with gpt_oss(name, "mine") as stub, server(stub.url, engine_level="tokens", harmony=True) as app:
        body = (await ask(app, model="mine")).json()
        assert body["output"][0]["phase"] == "final_answer"
