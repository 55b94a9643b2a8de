"""What every engine in the registry keeps: to register is to be tested. What an engine says is not judged here."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import datetime
from typing import Any

import jsonschema_rs
import pytest
from msgspec import Struct
from msgspec.structs import replace

from antiphon.config import Config
from antiphon.config.xdg import cache_home
from antiphon.core.prompt import (
    ChatPrompt,
    Chunk,
    JsonObject,
    JsonSchema,
    Prompt,
    Sampling,
    Segment,
    TextPrompt,
    TokenPrompt,
    Work,
)
from antiphon.engines.base import Deed, Engine, Flow
from antiphon.engines.llamacpp.engine import LlamaCpp, LlamaCppSettings
from antiphon.engines.llamacpp.model_files import default_model
from antiphon.engines.registry import ENGINES
from antiphon.errors import EngineFailed, UnsupportedParameter
from antiphon.render.harmony.renderer import render_harmony
from antiphon.render.harmony.system import Scene
from antiphon.render.template.template import render_text
from antiphon.wiring import build_engine
from tests.engines.http.stubs.chat_stub import DIALECTS, standing_in
from tests.real.engine_locations import REAL as REAL_ENGINES

SLOTS = 2
REAL = [pytest.mark.needs("llamacpp"), pytest.mark.real_model]
BY_TOKENS = ("vllm", "sglang", "llamacpp-server")
# How an engine is set up here, in every way that makes a difference to who uses it.
WAYS = {
    "fake-chat": Config(engine="fake", fake_level="chat"),
    "fake-text": Config(engine="fake", fake_level="text"),
    "fake-tokens": Config(engine="fake", fake_level="tokens"),
    "fake-harmony": Config(engine="fake", fake_level="harmony"),
    "llamacpp": Config(engine="llamacpp", context=1024, slots=SLOTS),
    **{name: Config(engine=name) for name in DIALECTS},  # each over a stand-in for its server
    **{f"{name}, by tokens": Config(engine=name, engine_level="tokens") for name in BY_TOKENS},
    "llamacpp-server, a real one": Config(engine="llamacpp-server"),
    "llamacpp-server, a real one, by tokens": Config(engine="llamacpp-server", engine_level="tokens"),
}
for kind in [kind for kind, named in REAL_ENGINES.items() if named]:  # by `make test-engines`
    WAYS[f"{kind}, a real one"] = Config(engine=kind)
    WAYS[f"{kind}, a real one, by tokens"] = Config(engine=kind, engine_level="tokens")
WITH_A_MODEL = {"llamacpp", "llamacpp-server, a real one", "llamacpp-server, a real one, by tokens"}
UNTOLD = {"ovms", "ollama"}  # they do not say what they found in a cache

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400)]


def marks(way: str) -> list[pytest.MarkDecorator]:
    if way in WITH_A_MODEL:
        return REAL
    return [pytest.mark.real_engine] if ", a real one" in way else []


@pytest.fixture(scope="module", params=[pytest.param(way, marks=marks(way)) for way in WAYS])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    way, config = request.param, WAYS[request.param]
    if way in WITH_A_MODEL:
        default_model(cache_home())
    async with AsyncExitStack() as standing:
        if (name := way.partition(", by tokens")[0]) in DIALECTS:
            config = replace(config, engine=(await standing.enter_async_context(standing_in(name))).url)
        elif config.engine == "llamacpp-server":
            config = replace(config, engine=await standing.enter_async_context(real_llamacpp_server()))
        elif named := REAL_ENGINES.get(str(config.engine)):
            if reason := named.missing():
                pytest.skip(reason)
            config = replace(config, engine=standing.enter_context(named.running()))
        engine = build_engine(config)
        await engine.open()
        yield engine
        await engine.close()


@asynccontextmanager
async def real_llamacpp_server() -> AsyncIterator[str]:
    """The server within the embedded engine's child process is llama.cpp's own."""
    embedded = LlamaCpp(LlamaCppSettings(context=1024, slots=SLOTS))
    await embedded.open()
    try:
        (model,) = embedded.loaded
        assert model.child is not None
        yield f"llamacpp-server+unix://{model.child.socket}"
    finally:
        await embedded.close()


class Said(Struct):
    lists: list[list[Chunk]]

    @property
    def chunks(self) -> list[Chunk]:
        return [chunk for chunks in self.lists for chunk in chunks]

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)


async def prompt(engine: Engine, *texts: str) -> Prompt:
    """In whichever form the engine takes."""
    roles = ("user", "assistant")
    messages = ({"role": roles[number % 2], "content": text} for number, text in enumerate(texts))
    chat = ChatPrompt(tuple(messages))
    able = await engine.capabilities(engine.models()[0].id)
    if able.architecture == "gpt_oss":
        return render_harmony(chat, Scene(today="2026-01-01", opening="final"))
    return chat if able.template is None else render_text(able.template, chat, datetime(2026, 1, 1))


async def work(engine: Engine, *texts: str, constraint: JsonObject | JsonSchema | None = None, **sampling: Any) -> Work:
    """Greedy where nothing else is asked for: what a model says by chance must not decide over a test."""
    asked = await prompt(engine, *texts)
    if not sampling.keys() & {"temperature", "seed"}:
        sampling["temperature"] = 0.0
    return Work(model=engine.models()[0].id, prompt=asked, sampling=Sampling(**sampling), constraint=constraint)


async def ask(engine: Engine, *texts: str, **wishes: Any) -> Said:
    async with asyncio.timeout(60), aclosing(engine.generate(await work(engine, *texts, **wishes))) as lists:
        return Said([chunks async for chunks in lists])


async def must_honour(engine: Engine, field: str) -> None:
    """Or there is nothing to test."""
    if field not in (await engine.capabilities(engine.models()[0].id)).honours:
        pytest.skip(f"{engine.name} has no {field}, and says so")


def test_every_registered_engine_is_tested_here() -> None:
    assert {config.engine for config in WAYS.values()} == ENGINES.keys()


async def test_it_says_which_models_it_has(engine: Engine) -> None:
    assert engine.models()
    assert len({model.id for model in engine.models()}) == len(engine.models())
    assert all(engine.serves(model.id) for model in engine.models())
    assert engine.healthy()
    assert ENGINES[engine.name].endswith(f":{type(engine).__name__}")


async def test_the_last_chunk_and_only_the_last_has_a_finish_and_counts(engine: Engine) -> None:
    said = await ask(engine, "Hello!", max_tokens=8)
    *others, last = said.chunks
    assert last.finish in ("stop", "length")
    assert last.counts is not None
    assert 0 < last.counts.output_tokens <= 8
    assert last.counts.input_tokens > 0
    assert {(chunk.finish, chunk.counts) for chunk in others} <= {(None, None)}
    assert all(chunks or isinstance(chunks, Flow) for chunks in said.lists)  # no other list is empty


async def test_what_is_poured_out_of_it_is_what_it_says_when_it_is_asked(engine: Engine) -> None:
    asked = await ask(engine, "Hello!", max_tokens=8)
    poured = Said([])
    async with asyncio.timeout(60), aclosing(engine.generate(await work(engine, "Hello!", max_tokens=8))) as lists:
        async for chunks in lists:
            if isinstance(chunks, Flow):
                await chunks.pour(poured.lists.append)
            else:
                poured.lists.append(chunks)
    assert poured.text == asked.text
    *others, last = poured.chunks
    assert last.finish == asked.chunks[-1].finish
    assert last.counts is not None
    assert {(chunk.finish, chunk.counts) for chunk in others} <= {(None, None)}


async def test_every_kind_of_prompt_that_it_takes_is_answered(engine: Engine) -> None:
    able = await engine.capabilities(engine.models()[0].id)
    for kind in sorted({able.prompt} | able.takes):
        if (asked := await prompt_of(kind, engine, "Hello!")) is None:
            continue
        wanted = Work(model=engine.models()[0].id, prompt=asked, sampling=Sampling(max_tokens=3, temperature=0.0))
        async with asyncio.timeout(60), aclosing(engine.generate(wanted)) as lists:
            last = Said([chunks async for chunks in lists]).chunks[-1]
        assert last.finish in ("stop", "length"), kind
        assert last.counts is not None
        assert last.counts.input_tokens > 0, kind
        assert 0 < last.counts.output_tokens <= 3, kind


async def prompt_of(kind: str, engine: Engine, text: str) -> Prompt | None:
    """None where there is no way to make one."""
    model, written = engine.models()[0].id, TextPrompt((Segment(text, control=False),))
    match kind:
        case "chat":
            return ChatPrompt(({"role": "user", "content": text},))
        case "text":
            return written
    does = (await engine.capabilities(model)).does
    return TokenPrompt(await engine.tokenize(model, written)) if "tokenize" in does else None


async def test_an_answer_that_is_cut_says_so(engine: Engine) -> None:
    last = (await ask(engine, "Say a lot about many things.", max_tokens=2)).chunks[-1]
    assert last.finish == "length"
    assert last.counts is not None
    assert last.counts.output_tokens == 2


async def test_count_counts_what_the_model_reads(engine: Engine) -> None:
    model = engine.models()[0].id
    if not (await engine.capabilities(model)).counts:
        pytest.skip(f"{engine.name} does not count, and says so")
    last = (await ask(engine, "How many tokens are these?", max_tokens=1)).chunks[-1]
    assert last.counts is not None
    assert await engine.count(model, await prompt(engine, "How many tokens are these?")) == last.counts.input_tokens


@pytest.mark.shows("C.9")
async def test_a_second_turn_finds_the_first_in_a_cache(engine: Engine) -> None:
    if engine.name in UNTOLD:
        pytest.skip(f"{engine.name} does not tell")
    long = "Tell me something long about the sea. " * 25  # vLLM keeps blocks of 128 tokens on a CPU
    first = await ask(engine, long, max_tokens=3)
    second = await ask(engine, long, first.text, "And now?", max_tokens=1)
    assert second.chunks[-1].counts is not None
    assert second.chunks[-1].counts.cached_tokens > 0


@pytest.mark.parametrize("heard", [0, 1])
async def test_closing_frees_what_the_work_held(engine: Engine, heard: int) -> None:
    """Many times over what there are slots: if one were kept, the last would wait for ever."""
    for _ in range(2 * SLOTS):
        async with (
            asyncio.timeout(30),
            aclosing(engine.generate(await work(engine, "Go on.", max_tokens=500))) as lists,
        ):
            for _ in range(heard):
                await anext(lists)
    assert (await ask(engine, "Hello!", max_tokens=1)).chunks[-1].finish == "length"


async def test_a_cancelled_task_frees_what_its_work_held(engine: Engine) -> None:
    for _ in range(2 * SLOTS):
        task = asyncio.ensure_future(ask(engine, "Go on.", max_tokens=500))
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=30)
        assert task.done()
    assert (await ask(engine, "Hello!", max_tokens=1)).chunks[-1].finish == "length"


async def test_more_work_than_slots_is_all_done(engine: Engine) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(engine, f"Number {number}", max_tokens=4)) for number in range(3 * SLOTS)]
    assert all(task.result().chunks[-1].finish for task in tasks)


@pytest.mark.parametrize("included", [False, True])
@pytest.mark.shows("A3.9")
async def test_a_stop_string_ends_the_answer_and_is_left_out_unless_wanted(engine: Engine, included: bool) -> None:
    await must_honour(engine, "include_stop_str_in_output" if included else "stop")
    free = (await ask(engine, "Hello, how are you?", max_tokens=12, temperature=0.0)).text
    stop = free[5:7]
    wishes = {"max_tokens": 12, "temperature": 0.0, "include_stop_str_in_output": included}
    said = await ask(engine, "Hello, how are you?", stop=(stop,), **wishes)
    assert said.text == free[: free.index(stop)] + (stop if included else "")
    assert said.chunks[-1].finish == "stop"


@pytest.mark.shows("A3.7")
async def test_a_seed_makes_an_answer_repeatable(engine: Engine) -> None:
    await must_honour(engine, "seed")
    texts = {(await ask(engine, "Hello!", max_tokens=6, seed=3, temperature=1.5)).text for _ in range(2)}
    assert len(texts) == 1


async def test_logprobs_spell_the_text(engine: Engine) -> None:
    await must_honour(engine, "top_logprobs")
    said = await ask(engine, "Hello!", max_tokens=4, logprobs=2)
    logprobs = [logprob for chunk in said.chunks for logprob in chunk.logprobs]
    assert "".join(logprob.token for logprob in logprobs) == said.text
    assert all(logprob.logprob <= 0 and len(logprob.top_logprobs) == 2 for logprob in logprobs)
    assert not [chunk.logprobs for chunk in (await ask(engine, "Hello!", max_tokens=4)).chunks if chunk.logprobs]


@pytest.mark.shows("A.33", "D.10")
async def test_a_schema_is_kept(engine: Engine) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "size": {"enum": ["small", "large"]}},
        "required": ["ok", "size"],
        "additionalProperties": False,
    }
    said = await ask(engine, "Well?", constraint=JsonSchema(schema), max_tokens=60)
    assert said.chunks[-1].finish == "stop"
    assert jsonschema_rs.is_valid(schema, json.loads(said.text))


@pytest.mark.shows("A.34", "D.10")
async def test_an_object_is_given_where_one_is_asked_for(engine: Engine) -> None:
    said = await ask(engine, "Answer in JSON.", constraint=JsonObject(), max_tokens=40)
    assert said.chunks[-1].finish == "length" or isinstance(json.loads(said.text), dict)


async def doing(engine: Engine, *deeds: Deed) -> str:
    """A model that does all of this, or there is nothing to test."""
    for model in engine.models():
        if (await engine.capabilities(model.id)).does.issuperset(deeds):
            return model.id
    pytest.skip(f"{engine.name} does not {' and '.join(deeds)}, and says so")


@pytest.mark.shows("C.27")
async def test_every_text_gets_a_vector_and_the_same_text_the_same_one(engine: Engine) -> None:
    model = await doing(engine, "embed")
    async with asyncio.timeout(60):
        made = await engine.embed(model, ["the cat sat", "a law was passed", "the cat sat"])
    one, other, again = made.vectors
    assert len(one) == len(other)
    assert one == pytest.approx(again, abs=1e-3)
    assert one != pytest.approx(other, abs=1e-3)
    assert made.tokens > 2


@pytest.mark.shows("G.6")
async def test_tokens_become_their_text_again(engine: Engine) -> None:
    model = await doing(engine, "tokenize", "detokenize")
    text = TextPrompt((Segment("How many tokens are these?", control=True),))
    tokens = await engine.tokenize(model, text, special=False)
    assert await engine.detokenize(model, tokens) == "How many tokens are these?"
    assert len(await engine.tokenize(model, text)) - len(tokens) in range(3)


async def test_what_it_does_not_do_is_a_typed_error(engine: Engine) -> None:
    """Nobody should ask: it says what it does."""
    model = engine.models()[0].id
    does = (await engine.capabilities(model)).does
    deeds: list[Deed] = ["score", "rerank", "classify", "pooling", "transcribe", "translate"]
    for deed in [deed for deed in deeds if deed not in does]:
        with pytest.raises((UnsupportedParameter, EngineFailed)):
            await engine.relay(model, deed, b"{}")
    if "embed" not in does:
        with pytest.raises((UnsupportedParameter, EngineFailed)):
            await engine.embed(model, ["a"])


async def test_opening_and_closing_twice_does_no_harm(engine: Engine) -> None:
    await engine.close()
    await engine.open()
    assert engine.healthy()
    assert (await ask(engine, "Hello!", max_tokens=1)).text is not None
