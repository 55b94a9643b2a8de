"""The fake engine as a gpt-oss model: it reads and speaks Harmony by tokens."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.core.deltas import CallDelta, CallStarted, Text, Thought
from antiphon.core.harmony import CALL, RETURN, STOPS
from antiphon.core.prompt import Chunk, JsonSchema, Sampling, Segment, TextPrompt, TokenPrompt, Work
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.engines.fake.harmony import decode, spelled
from antiphon.errors import InvalidValue

pytestmark = pytest.mark.anyio

ASKED = "<|start|>system<|message|>Be kind.<|end|><|start|>user<|message|>Hi there<|end|><|start|>assistant"
TOOLS = "<|start|>developer<|message|># Tools\n\nnamespace functions {\n\ntype f = () => any;\n\n}<|end|>"


def harmony(**settings: Any) -> FakeEngine:
    return FakeEngine(FakeSettings(level="harmony", **settings))


def work(asked: str = ASKED, **sampling: Any) -> Work:
    return Work(model="gpt-oss", prompt=TokenPrompt(spelled(asked)), sampling=Sampling(**sampling))


async def said(engine: FakeEngine, asked: Work | None = None) -> list[Chunk]:
    return [chunk async for chunks in engine.generate(asked or work()) for chunk in chunks]


async def spoken(engine: FakeEngine, asked: Work | None = None) -> str:
    return decode([token for chunk in await said(engine, asked) for token in chunk.tokens])


async def test_it_repeats_what_it_heard_in_a_final_message() -> None:
    engine = harmony()
    assert await spoken(engine) == "<|channel|>final<|message|>You said: Hi there<|return|>"
    assert await spoken(engine, replace(work(), effort="minimal")) == (
        "<|channel|>analysis<|message|>Let me think.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>You said: Hi there<|return|>"
    )


async def test_it_goes_on_where_the_prompt_takes_it() -> None:
    engine = harmony()
    begun = "<|channel|>final<|message|>"
    assert await spoken(engine, work(ASKED + begun)) == "You said: Hi there<|return|>"
    schema = JsonSchema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    calling = work(ASKED + "<|channel|>commentary to=functions.f <|constrain|>json<|message|>")
    assert await spoken(engine, replace(calling, constraint=schema)) == '{"a":0}<|call|>'
    which = work(TOOLS + ASKED + "<|channel|>commentary to=functions")
    assert await spoken(engine, which) == ".f <|constrain|>json<|message|>{}<|call|>"


async def test_it_calls_a_tool_and_then_tells_what_it_said() -> None:
    engine = harmony()
    call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
    assert await spoken(engine, work(TOOLS + ASKED)) == call
    output = "<|start|>functions.f<|channel|>commentary to=assistant<|message|>42<|end|><|start|>assistant"
    assert "final<|message|>The tool said: 42<" in await spoken(engine, work(TOOLS + ASKED + call + output))


async def test_it_ends_at_the_tokens_it_is_told_and_counts_every_one() -> None:
    engine = harmony()
    *_, before, last = await said(engine, work(stop_token_ids=STOPS))
    assert before.tokens == (RETURN,)
    assert last.counts is not None
    assert last.counts.input_tokens == len(spelled(ASKED))
    assert last.counts.output_tokens == len(spelled("<|channel|>final<|message|>You said: Hi there<|return|>"))
    cut = await said(engine, work(max_tokens=5))
    assert (len(cut), cut[-1].finish) == (6, "length")


async def test_control_tokens_are_shown_to_who_wants_to_see_them() -> None:
    engine = harmony()
    assert "".join([chunk.text for chunk in await said(engine)]) == "finalYou said: Hi there"
    shown = await said(engine, work(skip_special_tokens=False))
    assert "".join([chunk.text for chunk in shown]) == "<|channel|>final<|message|>You said: Hi there<|return|>"


async def test_a_character_of_several_tokens_comes_whole() -> None:
    engine = harmony()
    chunks = await said(engine, work(ASKED.replace("Hi there", "한글 🙂‍↕️")))
    assert "".join([chunk.text for chunk in chunks]).endswith("You said: 한글 🙂‍↕️")
    assert not any("�" in chunk.text for chunk in chunks)


async def test_what_a_test_writes_is_said_in_messages() -> None:
    engine = harmony()
    engine.says(Thought("h"), Thought("m"), Text("Well, "), CallStarted(0, "f"), CallDelta(0, "{}"))
    *before, last = await said(engine)
    assert decode([token for chunk in before for token in chunk.tokens]) == (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Well, <|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"
    )
    assert last.tokens == (CALL,)
    engine.says(Text("Well"), finish="length")
    assert (await said(engine))[-1].tokens == ()


async def test_a_script_may_say_tokens_and_harmony(tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    ids = list(spelled("<|channel|>final<|message|>Hi"))
    script.write_text(f"[[reply]]\nsteps = [{{ tokens = {ids} }}, {{ harmony = ' there<|return|>' }}]\n")
    engine = harmony(script=script)
    await engine.open()
    assert await spoken(engine) == "<|channel|>final<|message|>Hi there<|return|>"


async def test_its_tokens_are_those_of_the_model() -> None:
    engine = harmony()
    text = TextPrompt((Segment("<|end|>", control=True), Segment("<|end|>", control=False)))
    ids = await engine.tokenize("m", text)
    assert ids == (200007, 27, 91, 419, 91, 29)
    assert await engine.detokenize("m", ids) == "<|end|><|end|>"
    assert await engine.count("m", TokenPrompt(ids)) == 6
    with pytest.raises(InvalidValue):
        await engine.count("m", TokenPrompt((-1,)))
    able = await engine.capabilities("m")
    assert (able.prompt, able.architecture, able.template) == ("tokens", "gpt_oss", None)
