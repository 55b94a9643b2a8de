"""The fake engine at Harmony level, as a gpt-oss model: it reads and writes Harmony tokens."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.core.deltas import CallDelta, CallStarted, ReasoningDelta, Text
from antiphon.core.harmony import CALL, RETURN, STOP_TOKENS
from antiphon.core.prompt import Chunk, GenerationRequest, JsonSchema, Sampling, Segment, TextPrompt, TokenPrompt
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.engines.fake.harmony import decode_tokens, encode_with_controls
from antiphon.errors import InvalidValue

pytestmark = pytest.mark.anyio

PROMPT = "<|start|>system<|message|>Be kind.<|end|><|start|>user<|message|>Hi there<|end|><|start|>assistant"
TOOLS = "<|start|>developer<|message|># Tools\n\nnamespace functions {\n\ntype f = () => any;\n\n}<|end|>"


def make_engine(**settings: Any) -> FakeEngine:
    return FakeEngine(FakeSettings(level="harmony", **settings))


def make_request(text: str = PROMPT, **sampling: Any) -> GenerationRequest:
    return GenerationRequest(
        model="gpt-oss", prompt=TokenPrompt(encode_with_controls(text)), sampling=Sampling(**sampling)
    )


async def generate_chunks(engine: FakeEngine, request: GenerationRequest | None = None) -> list[Chunk]:
    return [chunk async for chunks in engine.generate(request or make_request()) for chunk in chunks]


async def generate_text(engine: FakeEngine, request: GenerationRequest | None = None) -> str:
    return decode_tokens([token for chunk in await generate_chunks(engine, request) for token in chunk.tokens])


async def test_the_answer_is_a_final_message_with_the_user_text() -> None:
    engine = make_engine()
    assert await generate_text(engine) == "<|channel|>final<|message|>You said: Hi there<|return|>"
    assert await generate_text(engine, replace(make_request(), effort="minimal")) == (
        "<|channel|>analysis<|message|>Let me think.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>You said: Hi there<|return|>"
    )


async def test_the_answer_continues_a_message_that_the_prompt_opened() -> None:
    engine = make_engine()
    begun = "<|channel|>final<|message|>"
    assert await generate_text(engine, make_request(PROMPT + begun)) == "You said: Hi there<|return|>"
    schema = JsonSchema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    calling = make_request(PROMPT + "<|channel|>commentary to=functions.f <|constrain|>json<|message|>")
    assert await generate_text(engine, replace(calling, constraint=schema)) == '{"a":0}<|call|>'
    which = make_request(TOOLS + PROMPT + "<|channel|>commentary to=functions")
    assert await generate_text(engine, which) == ".f <|constrain|>json<|message|>{}<|call|>"


async def test_a_tool_is_called_and_its_output_is_quoted() -> None:
    engine = make_engine()
    call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
    assert await generate_text(engine, make_request(TOOLS + PROMPT)) == call
    output = "<|start|>functions.f<|channel|>commentary to=assistant<|message|>42<|end|><|start|>assistant"
    assert "final<|message|>The tool said: 42<" in await generate_text(
        engine, make_request(TOOLS + PROMPT + call + output)
    )


async def test_stop_tokens_end_the_answer_and_all_tokens_are_counted() -> None:
    engine = make_engine()
    *_, before, last = await generate_chunks(engine, make_request(stop_token_ids=STOP_TOKENS))
    assert before.tokens == (RETURN,)
    assert last.counts is not None
    assert last.counts.input_tokens == len(encode_with_controls(PROMPT))
    assert last.counts.output_tokens == len(
        encode_with_controls("<|channel|>final<|message|>You said: Hi there<|return|>")
    )
    cut = await generate_chunks(engine, make_request(max_tokens=5))
    assert (len(cut), cut[-1].finish) == (6, "length")


async def test_control_tokens_are_in_the_text_unless_they_are_skipped() -> None:
    engine = make_engine()
    assert "".join([chunk.text for chunk in await generate_chunks(engine)]) == "finalYou said: Hi there"
    shown = await generate_chunks(engine, make_request(skip_special_tokens=False))
    assert "".join([chunk.text for chunk in shown]) == "<|channel|>final<|message|>You said: Hi there<|return|>"


async def test_a_character_of_several_tokens_is_not_split() -> None:
    engine = make_engine()
    chunks = await generate_chunks(engine, make_request(PROMPT.replace("Hi there", "한글 🙂‍↕️")))
    assert "".join([chunk.text for chunk in chunks]).endswith("You said: 한글 🙂‍↕️")
    assert not any("�" in chunk.text for chunk in chunks)


async def test_a_scripted_reply_is_rendered_as_harmony_messages() -> None:
    engine = make_engine()
    engine.says(ReasoningDelta("h"), ReasoningDelta("m"), Text("Well, "), CallStarted(0, "f"), CallDelta(0, "{}"))
    *before, last = await generate_chunks(engine)
    assert decode_tokens([token for chunk in before for token in chunk.tokens]) == (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Well, <|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"
    )
    assert last.tokens == (CALL,)
    engine.says(Text("Well"), finish="length")
    assert (await generate_chunks(engine))[-1].tokens == ()


async def test_a_script_may_contain_tokens_and_harmony_text(tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    ids = list(encode_with_controls("<|channel|>final<|message|>Hi"))
    script.write_text(f"[[reply]]\nsteps = [{{ tokens = {ids} }}, {{ harmony = ' there<|return|>' }}]\n")
    engine = make_engine(script=script)
    await engine.open()
    assert await generate_text(engine) == "<|channel|>final<|message|>Hi there<|return|>"


async def test_token_ids_are_those_of_the_gpt_oss_vocabulary() -> None:
    engine = make_engine()
    text = TextPrompt((Segment("<|end|>", control=True), Segment("<|end|>", control=False)))
    ids = await engine.tokenize("m", text)
    assert ids == (200007, 27, 91, 419, 91, 29)
    assert await engine.detokenize("m", ids) == "<|end|><|end|>"
    assert await engine.count_tokens("m", TokenPrompt(ids)) == 6
    with pytest.raises(InvalidValue):
        await engine.count_tokens("m", TokenPrompt((-1,)))
    capabilities = await engine.capabilities("m")
    assert (capabilities.level, capabilities.architecture, capabilities.template) == ("tokens", "gpt_oss", None)
