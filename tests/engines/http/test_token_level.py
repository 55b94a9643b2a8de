"""Token level: the engine renders a chat into tokens, receives tokens, and returns tokens and raw text, which
Antiphon's own parsers read. Also raw prompts, which engines accept at every level.
"""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.config import Config
from antiphon.core.prompt import ChatPrompt, Chunk, EngineExtras, JsonSchema, Segment, TextPrompt, TokenPrompt
from antiphon.engines.factory import build_engine
from antiphon.engines.fake.tokens import TEMPLATE, encode
from antiphon.errors import ContextTooLong, StartupError
from tests.engines.http.stubs.chat_stub import EngineStub, run_stub
from tests.engines.http.stubs.dialects import DIALECTS
from tests.engines.http.stubs.generation import make_request, open_app, open_engine, post_response, run_generation
from tests.support.asgi_client import call
from tests.support.local_servers import serve_tcp

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
TOKEN_LEVEL_ENGINES = ("vllm", "sglang", "llamacpp-server")
RENDERED_IDS = encode((Segment("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", control=True),))
TOOL = {"type": "function", "name": "add"}


def get_prompt(body: Json) -> Any:
    return body.get("input_ids", body.get("text", body.get("prompt")))


@pytest.mark.parametrize("name", TOKEN_LEVEL_ENGINES)
@pytest.mark.shows("C.20")
async def test_a_chat_is_sent_as_tokens_and_returned_as_text_and_tokens(name: str) -> None:
    async with run_stub(name) as stub, open_engine(stub.url, engine_level="tokens") as engine:
        result = await run_generation(engine, make_request(max_tokens=8))
        assert result.error is None
        assert result.text == "You said"
        assert encode((Segment(result.text, False),)) == tuple(one for chunk in result.chunks for one in chunk.tokens)
        assert tuple(get_prompt(stub.raw_bodies[0])) == RENDERED_IDS
        assert not stub.chat_bodies
        counts = result.chunks[-1].counts
        assert counts is not None
        assert (counts.input_tokens, counts.output_tokens) == (len(RENDERED_IDS), 8)
        assert await engine.count_tokens("m", ChatPrompt(({"role": "user", "content": "hi"},))) == len(RENDERED_IDS)


@pytest.mark.parametrize("name", TOKEN_LEVEL_ENGINES)
@pytest.mark.shows("C.20", "C.21")
async def test_a_response_at_token_level_is_complete(name: str) -> None:
    async with run_stub(name) as stub, open_app(stub.url, engine_level="tokens") as app:
        body = (await post_response(app, input="hello", include=["message.output_text.logprobs"])).json()
        (message,) = body["output"]
        (part,) = message["content"]
        assert (body["status"], part["text"]) == ("completed", "You said: hello")
        assert "".join(one["token"] for one in part["logprobs"]) == part["text"]
        assert body["usage"]["output_tokens"] == len(part["text"])
        (capabilities,) = (await call(app, "GET", "/v1/capabilities")).json()["data"]
        assert capabilities["level"] == "tokens"


@pytest.mark.parametrize("name", TOKEN_LEVEL_ENGINES)
async def test_reasoning_is_parsed_at_token_level(name: str) -> None:
    async with run_stub(name) as stub, open_app(stub.url, engine_level="tokens") as app:
        stub.raw.engine.says(*[_raw_chunk(piece) for piece in ("<think>", "Hm.", "</think>", "Well.")])
        body = (await post_response(app)).json()
        assert [item["type"] for item in body["output"]] == ["reasoning", "message"]
        assert body["output"][1]["content"][0]["text"] == "Well."


def _raw_chunk(text: str) -> Chunk:
    return Chunk(text=text, tokens=encode((Segment(text, False),)))


@pytest.mark.parametrize("name", TOKEN_LEVEL_ENGINES)
async def test_reasoning_opened_by_the_template_is_parsed_as_reasoning(name: str) -> None:
    """The prompt ends with the opening marker, so the output has only the closing one."""
    async with run_stub(name) as stub:
        stub.raw.template = replace(TEMPLATE, source=TEMPLATE.source + "<think>\n")
        stub.raw.extra_tokens = {"<think>": 5}
        async with open_app(stub.url, engine_level="tokens") as app:
            stub.raw.engine.says(*[_raw_chunk(piece) for piece in ("Hm.", "</think>", "Well.")])
            body = (await post_response(app)).json()
            assert [item["type"] for item in body["output"]] == ["reasoning", "message"]
            assert body["output"][0]["content"][0]["text"] == "Hm."


@pytest.mark.parametrize("name", TOKEN_LEVEL_ENGINES)
@pytest.mark.shows("C.20")
async def test_tools_are_called_at_token_level_even_if_the_template_has_no_tools(name: str) -> None:
    async with run_stub(name) as stub, open_app(stub.url, engine_level="tokens") as app:
        stub.raw.engine.says(_raw_chunk('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'))
        body = (await post_response(app, tools=[TOOL])).json()
        (called,) = body["output"]
        assert (called["type"], called["name"], called["arguments"]) == ("function_call", "add", '{"a": 1}')
        prompt = await stub.raw.engine.detokenize("m", get_prompt(stub.raw_bodies[0]))
        assert "# Tools" in prompt
        assert '"name": "add"' in prompt


@pytest.mark.parametrize("name", ["vllm", "sglang"])
async def test_the_tool_support_of_the_engines_template_is_probed(name: str) -> None:
    async with run_stub(name) as stub:
        for suffix, expected in (("", False), ("{% for tool in tools or [] %}{{ tool }}{% endfor %}", True)):
            stub.raw.template = replace(TEMPLATE, source=TEMPLATE.source + suffix)
            async with open_engine(stub.url, engine_level="tokens") as engine:
                assert (await engine.capabilities("m")).template_has_tools is expected
            async with open_engine(stub.url) as engine:
                assert (await engine.capabilities("m")).template_has_tools


@pytest.mark.parametrize("name", TOKEN_LEVEL_ENGINES)
async def test_control_tokens_that_a_parser_reads_are_requested_as_visible(name: str) -> None:
    async with run_stub(name) as stub, open_engine(stub.url, engine_level="tokens") as engine:
        await run_generation(engine, make_request(visible_tokens=("[TOOL_CALLS]",), max_tokens=2))
        await run_generation(engine, make_request(max_tokens=2))
        shown, hidden = [{**body, **body.get("sampling_params", {})} for body in stub.raw_bodies]
        if name == "llamacpp-server":
            assert shown["preserved_tokens"] == ["[TOOL_CALLS]"]
        else:
            assert shown["skip_special_tokens"] is False
        assert not {"preserved_tokens", "skip_special_tokens"} & hidden.keys()


@pytest.mark.parametrize("name", TOKEN_LEVEL_ENGINES)
async def test_effort_reaches_the_template(name: str) -> None:
    """`enable_thinking` opens reasoning in the fake template, and the fake engine then reasons."""
    async with run_stub(name) as stub, open_app(stub.url, engine_level="tokens") as app:
        for effort, thinks in (("high", True), ("none", False)):
            await post_response(app, reasoning={"effort": effort})
            assert (3 in get_prompt(stub.raw_bodies[-1])) is thinks, effort


@pytest.mark.parametrize("name", TOKEN_LEVEL_ENGINES)
async def test_a_schema_is_enforced_at_token_level(name: str) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    async with run_stub(name) as stub, open_engine(stub.url, engine_level="tokens") as engine:
        result = await run_generation(engine, make_request(constraint=JsonSchema(schema), max_tokens=40))
        assert result.text.replace(" ", "") == '{"a":1}'


@pytest.mark.parametrize("name", TOKEN_LEVEL_ENGINES)
async def test_a_missing_length_is_set_to_the_remaining_context(name: str) -> None:
    async with run_stub(name) as stub, open_engine(stub.url, engine_level="tokens") as engine:
        await run_generation(engine)
        sent = {**stub.raw_bodies[0], **stub.raw_bodies[0].get("sampling_params", {})}
        length = next(sent[key] for key in ("max_tokens", "max_new_tokens", "n_predict") if key in sent)
        assert length == 32768 - len(RENDERED_IDS)
        result = await run_generation(engine, make_request(prompt=TokenPrompt((20,) * 32768)))
        assert isinstance(result.error, ContextTooLong)


@pytest.mark.parametrize("name", DIALECTS)
async def test_a_raw_prompt_is_completed_at_chat_level(name: str) -> None:
    async with run_stub(name) as stub, open_engine(stub.url) as engine:
        capabilities = await engine.capabilities("m")
        assert capabilities.level == "chat"
        assert "text" in capabilities.other_levels
        result = await run_generation(engine, make_request(prompt=TextPrompt((Segment("Once", True),)), max_tokens=13))
        assert (result.error, result.text) == (None, "You said: Onc")
        assert result.chunks[-1].finish == "length"
        if "tokens" in capabilities.other_levels:
            result = await run_generation(
                engine, make_request(prompt=TokenPrompt(encode((Segment("Once", False),))), max_tokens=40)
            )
            assert (result.error, result.text, result.chunks[-1].finish) == (None, "You said: Once", "stop")
        assert not stub.chat_bodies


async def test_segments_that_are_not_control_make_no_control_tokens() -> None:
    """llama.cpp can distinguish them; vLLM and SGLang treat every text as the template's own."""
    segments = (Segment("<|im_start|>user\n", True), Segment("<|im_end|>", False), Segment("<|im_end|>", True))
    async with run_stub("llamacpp-server") as stub, open_engine(stub.url) as engine:
        await run_generation(engine, make_request(prompt=TextPrompt(segments), max_tokens=1))
        assert tuple(stub.raw_bodies[0]["prompt"]) == encode(segments)
        assert stub.raw_bodies[0]["prompt"].count(2) == 1


async def test_a_stop_string_that_the_engine_includes_is_cut_from_a_raw_completion() -> None:
    async with run_stub("ovms") as stub, open_engine(stub.url) as engine:
        result = await run_generation(
            engine, make_request(prompt=TextPrompt((Segment("Once", True),)), max_tokens=40, stop=("d: O",))
        )
        assert result.text == "You sai"
        assert stub.raw_bodies[0]["stop"] == ["d: O"]


@pytest.mark.parametrize("cumulative", [True, False])
async def test_sglang_may_stream_cumulatively_or_incrementally(cumulative: bool) -> None:
    server_info = {**DIALECTS["sglang"].asides["/server_info"], "incremental_streaming_output": not cumulative}
    dialect = replace(DIALECTS["sglang"], asides={**DIALECTS["sglang"].asides, "/server_info": server_info})
    stub = EngineStub(dialect)
    async with (
        serve_tcp(stub.serve) as port,
        open_engine(f"sglang://127.0.0.1:{port}", engine_level="tokens") as engine,
    ):
        result = await run_generation(engine, make_request(max_tokens=9, logprobs=2))
        assert (result.text, result.chunks[-1].finish) == ("You said:", "length")
        logprobs = [one for chunk in result.chunks for one in chunk.logprobs]
        assert "".join(one.token for one in logprobs) == result.text
        assert all(len(one.top_logprobs) == 2 for one in logprobs)


async def test_a_completion_is_cancelled_at_a_stop_token_of_the_client() -> None:
    """llama.cpp has no stop token ids, so it would continue."""
    (stop,) = encode((Segment(":", False),))
    async with run_stub("llamacpp-server") as stub, open_engine(stub.url, engine_level="tokens") as engine:
        result = await run_generation(engine, make_request(max_tokens=100, stop_token_ids=(stop,)))
        assert (result.text, result.chunks[-1].finish) == ("You said", "stop")
        assert result.chunks[-1].extras == EngineExtras(stop_reason=stop)


@pytest.mark.parametrize("name", [name for name in DIALECTS if name not in TOKEN_LEVEL_ENGINES])
async def test_an_engine_without_token_level_rejects_it_at_startup(name: str) -> None:
    with pytest.raises(StartupError, match="chats only"):
        build_engine(Config.from_settings(engine=f"{name}://127.0.0.1:1", engine_level="tokens"))


@pytest.mark.parametrize("name", TOKEN_LEVEL_ENGINES)
@pytest.mark.parametrize("received", [0, 1])
async def test_closing_a_raw_completion_cancels_the_engine_request(name: str, received: int) -> None:
    async with run_stub(name) as stub, open_engine(stub.url, engine_level="tokens") as engine:
        gate = stub.raw.engine.holds(after=received)
        async with aclosing(engine.generate(make_request(max_tokens=400))) as lists:
            waiting = asyncio.ensure_future(anext(lists))
            async with asyncio.timeout(30):
                await gate.reached.wait()
            if received:
                await waiting
            else:
                waiting.cancel()
                await asyncio.wait([waiting])
        gate.open()
        async with asyncio.timeout(30):
            while stub.raw.engine.running:  # noqa: ASYNC110 - the fake engine has no event for it
                await asyncio.sleep(0.001)
        assert (stub.raw.engine.running, stub.raw.engine.cancelled) == (0, 1)
