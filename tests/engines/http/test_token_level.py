"""Token level: the engine renders a chat into tokens, tokens go out, tokens and raw text come back, and our own parsers
read them. And raw prompts, which engines take at every level."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.config import Config
from antiphon.core.prompt import ChatPrompt, Chunk, Extras, JsonSchema, Segment, TextPrompt, TokenPrompt
from antiphon.engines.fake.tokens import TEMPLATE, encode
from antiphon.errors import ContextTooLong, StartupError
from antiphon.wiring import build_engine
from tests.engines.http.stubs.chat_stub import Stub, standing_in, tcp
from tests.engines.http.stubs.dialects import DIALECTS
from tests.engines.http.stubs.generation import ask, opened, post, server, work
from tests.support.asgi_client import call

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
LEVELLED = ("vllm", "sglang", "llamacpp-server")
RENDERED = encode((Segment("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", control=True),))
TOOL = {"type": "function", "name": "add"}


def prompt_of(body: Json) -> Any:
    return body.get("input_ids", body.get("text", body.get("prompt")))


@pytest.mark.parametrize("name", LEVELLED)
@pytest.mark.shows("C.20")
async def test_a_chat_goes_out_as_tokens_and_text_and_tokens_come_back(name: str) -> None:
    async with standing_in(name) as stub, opened(stub.url, engine_level="tokens") as engine:
        said = await ask(engine, work(max_tokens=8))
        assert said.error is None
        assert said.text == "You said"
        assert encode((Segment(said.text, False),)) == tuple(one for chunk in said.chunks for one in chunk.tokens)
        assert tuple(prompt_of(stub.completed[0])) == RENDERED
        assert not stub.seen
        counts = said.chunks[-1].counts
        assert counts is not None
        assert (counts.input_tokens, counts.output_tokens) == (len(RENDERED), 8)
        assert await engine.count("m", ChatPrompt(({"role": "user", "content": "hi"},))) == len(RENDERED)


@pytest.mark.parametrize("name", LEVELLED)
@pytest.mark.shows("C.20", "C.21")
async def test_a_response_at_token_level_is_a_response(name: str) -> None:
    async with standing_in(name) as stub, server(stub.url, engine_level="tokens") as app:
        body = (await post(app, input="hello", include=["message.output_text.logprobs"])).json()
        (message,) = body["output"]
        (part,) = message["content"]
        assert (body["status"], part["text"]) == ("completed", "You said: hello")
        assert "".join(one["token"] for one in part["logprobs"]) == part["text"]
        assert body["usage"]["output_tokens"] == len(part["text"])
        (able,) = (await call(app, "GET", "/v1/capabilities")).json()["data"]
        assert able["level"] == "tokens"


@pytest.mark.parametrize("name", LEVELLED)
async def test_thoughts_are_parsed_here_at_token_level(name: str) -> None:
    async with standing_in(name) as stub, server(stub.url, engine_level="tokens") as app:
        stub.raw.engine.says(*[_raw(piece) for piece in ("<think>", "Hm.", "</think>", "Well.")])
        body = (await post(app)).json()
        assert [item["type"] for item in body["output"]] == ["reasoning", "message"]
        assert body["output"][1]["content"][0]["text"] == "Well."


def _raw(text: str) -> Chunk:
    return Chunk(text=text, tokens=encode((Segment(text, False),)))


@pytest.mark.parametrize("name", LEVELLED)
async def test_a_thought_that_the_template_opened_is_a_thought(name: str) -> None:
    """The prompt ends with the mark, so the answer has only the closing one."""
    async with standing_in(name) as stub:
        stub.raw.template = replace(TEMPLATE, source=TEMPLATE.source + "<think>\n")
        stub.raw.marks = {"<think>": 5}
        async with server(stub.url, engine_level="tokens") as app:
            stub.raw.engine.says(*[_raw(piece) for piece in ("Hm.", "</think>", "Well.")])
            body = (await post(app)).json()
            assert [item["type"] for item in body["output"]] == ["reasoning", "message"]
            assert body["output"][0]["content"][0]["text"] == "Hm."


@pytest.mark.parametrize("name", LEVELLED)
@pytest.mark.shows("C.20")
async def test_tools_are_called_at_token_level_also_where_the_template_knows_none(name: str) -> None:
    async with standing_in(name) as stub, server(stub.url, engine_level="tokens") as app:
        stub.raw.engine.says(_raw('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'))
        body = (await post(app, tools=[TOOL])).json()
        (called,) = body["output"]
        assert (called["type"], called["name"], called["arguments"]) == ("function_call", "add", '{"a": 1}')
        told = await stub.raw.engine.detokenize("m", prompt_of(stub.completed[0]))
        assert "# Tools" in told
        assert '"name": "add"' in told


@pytest.mark.parametrize("name", ["vllm", "sglang"])
async def test_whether_the_engines_template_knows_tools_is_found_out(name: str) -> None:
    async with standing_in(name) as stub:
        for words, knows in (("", False), ("{% for tool in tools or [] %}{{ tool }}{% endfor %}", True)):
            stub.raw.template = replace(TEMPLATE, source=TEMPLATE.source + words)
            async with opened(stub.url, engine_level="tokens") as engine:
                assert (await engine.capabilities("m")).knows_tools is knows
            async with opened(stub.url) as engine:
                assert (await engine.capabilities("m")).knows_tools


@pytest.mark.parametrize("name", LEVELLED)
async def test_control_tokens_that_a_parser_reads_are_shown(name: str) -> None:
    async with standing_in(name) as stub, opened(stub.url, engine_level="tokens") as engine:
        await ask(engine, work(shown=("[TOOL_CALLS]",), max_tokens=2))
        await ask(engine, work(max_tokens=2))
        shown, hidden = [{**body, **body.get("sampling_params", {})} for body in stub.completed]
        if name == "llamacpp-server":
            assert shown["preserved_tokens"] == ["[TOOL_CALLS]"]
        else:
            assert shown["skip_special_tokens"] is False
        assert not {"preserved_tokens", "skip_special_tokens"} & hidden.keys()


@pytest.mark.parametrize("name", LEVELLED)
async def test_effort_reaches_the_template(name: str) -> None:
    """enable_thinking opens a thought in the fake template, and the fake engine then thinks."""
    async with standing_in(name) as stub, server(stub.url, engine_level="tokens") as app:
        for effort, thinks in (("high", True), ("none", False)):
            await post(app, reasoning={"effort": effort})
            assert (3 in prompt_of(stub.completed[-1])) is thinks, effort


@pytest.mark.parametrize("name", LEVELLED)
async def test_a_schema_is_kept_at_token_level(name: str) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    async with standing_in(name) as stub, opened(stub.url, engine_level="tokens") as engine:
        said = await ask(engine, work(constraint=JsonSchema(schema), max_tokens=40))
        assert said.text.replace(" ", "") == '{"a":1}'


@pytest.mark.parametrize("name", LEVELLED)
async def test_an_answer_without_a_length_has_all_the_room_there_is(name: str) -> None:
    async with standing_in(name) as stub, opened(stub.url, engine_level="tokens") as engine:
        await ask(engine)
        sent = {**stub.completed[0], **stub.completed[0].get("sampling_params", {})}
        length = next(sent[key] for key in ("max_tokens", "max_new_tokens", "n_predict") if key in sent)
        assert length == 32768 - len(RENDERED)
        said = await ask(engine, work(prompt=TokenPrompt((20,) * 32768)))
        assert isinstance(said.error, ContextTooLong)


@pytest.mark.parametrize("name", DIALECTS)
async def test_a_raw_text_is_completed_whatever_the_level(name: str) -> None:
    async with standing_in(name) as stub, opened(stub.url) as engine:
        able = await engine.capabilities("m")
        assert able.prompt == "chat"
        assert "text" in able.takes
        said = await ask(engine, work(prompt=TextPrompt((Segment("Once", True),)), max_tokens=13))
        assert (said.error, said.text) == (None, "You said: Onc")
        assert said.chunks[-1].finish == "length"
        if "tokens" in able.takes:
            said = await ask(engine, work(prompt=TokenPrompt(encode((Segment("Once", False),))), max_tokens=40))
            assert (said.error, said.text, said.chunks[-1].finish) == (None, "You said: Once", "stop")
        assert not stub.seen


async def test_what_is_no_control_text_makes_no_control_tokens() -> None:
    """llama.cpp can be told; vLLM and SGLang take every text for the template's own."""
    segments = (Segment("<|im_start|>user\n", True), Segment("<|im_end|>", False), Segment("<|im_end|>", True))
    async with standing_in("llamacpp-server") as stub, opened(stub.url) as engine:
        await ask(engine, work(prompt=TextPrompt(segments), max_tokens=1))
        assert tuple(stub.completed[0]["prompt"]) == encode(segments)
        assert stub.completed[0]["prompt"].count(2) == 1


async def test_a_stop_string_that_the_engine_sends_along_is_cut_off_a_raw_answer() -> None:
    async with standing_in("ovms") as stub, opened(stub.url) as engine:
        said = await ask(engine, work(prompt=TextPrompt((Segment("Once", True),)), max_tokens=40, stop=("d: O",)))
        assert said.text == "You sai"
        assert stub.completed[0]["stop"] == ["d: O"]


@pytest.mark.parametrize("whole", [True, False])
async def test_sglang_may_repeat_itself_or_not(whole: bool) -> None:
    aside = {**DIALECTS["sglang"].asides["/server_info"], "incremental_streaming_output": not whole}
    dialect = replace(DIALECTS["sglang"], asides={**DIALECTS["sglang"].asides, "/server_info": aside})
    stub = Stub(dialect)
    async with tcp(stub.serve) as port, opened(f"sglang://127.0.0.1:{port}", engine_level="tokens") as engine:
        said = await ask(engine, work(max_tokens=9, logprobs=2))
        assert (said.text, said.chunks[-1].finish) == ("You said:", "length")
        logprobs = [one for chunk in said.chunks for one in chunk.logprobs]
        assert "".join(one.token for one in logprobs) == said.text
        assert all(len(one.top_logprobs) == 2 for one in logprobs)


async def test_an_answer_that_ends_at_a_token_of_the_clients_is_cancelled_there() -> None:
    """llama.cpp knows no such thing, so it would go on."""
    (stop,) = encode((Segment(":", False),))
    async with standing_in("llamacpp-server") as stub, opened(stub.url, engine_level="tokens") as engine:
        said = await ask(engine, work(max_tokens=100, stop_token_ids=(stop,)))
        assert (said.text, said.chunks[-1].finish) == ("You said", "stop")
        assert said.chunks[-1].extras == Extras(stop_reason=stop)


@pytest.mark.parametrize("name", [name for name in DIALECTS if name not in LEVELLED])
async def test_who_has_no_token_level_does_not_start_with_one(name: str) -> None:
    with pytest.raises(StartupError, match="chats only"):
        build_engine(Config(engine=f"{name}://127.0.0.1:1", engine_level="tokens"))


@pytest.mark.parametrize("name", LEVELLED)
@pytest.mark.parametrize("heard", [0, 1])
async def test_closing_a_raw_answer_ends_the_engines_work(name: str, heard: int) -> None:
    async with standing_in(name) as stub, opened(stub.url, engine_level="tokens") as engine:
        gate = stub.raw.engine.holds(after=heard)
        async with aclosing(engine.generate(work(max_tokens=400))) as lists:
            waiting = asyncio.ensure_future(anext(lists))
            async with asyncio.timeout(30):
                await gate.reached.wait()
            if heard:
                await waiting
            else:
                waiting.cancel()
                await asyncio.wait([waiting])
        gate.open()
        async with asyncio.timeout(30):
            while stub.raw.engine.running:  # noqa: ASYNC110 - it says nothing when it is done
                await asyncio.sleep(0.001)
        assert (stub.raw.engine.running, stub.raw.engine.cancelled) == (0, 1)
