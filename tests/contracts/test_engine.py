"""Contract suite of engines: runs against every registered engine. The content of the answers is not judged.

Covers `engines/base.py`.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import datetime
from typing import Any

import jsonschema_rs
import pytest
from msgspec import Struct

from antiphon.config import Config
from antiphon.config.areas import cache_home
from antiphon.core.prompt import (
    ChatPrompt,
    Chunk,
    GenerationRequest,
    JsonObject,
    JsonSchema,
    Prompt,
    Sampling,
    Segment,
    TextPrompt,
    TokenPrompt,
)
from antiphon.engines.base import Engine, PushStream, Task
from antiphon.engines.embedded.model_files import DEFAULT_MODEL, fetch_model
from antiphon.engines.llamacpp.engine import LlamaCpp, LlamaCppSettings
from antiphon.engines.registry import ENGINES
from antiphon.errors import EngineFailed, UnsupportedParameter
from antiphon.render.harmony.renderer import render_harmony
from antiphon.render.harmony.system import HarmonySettings
from antiphon.render.template.template import render_text
from tests.engines.http.stubs.chat_stub import run_stub
from tests.real.engine_locations import REAL as REAL_ENGINES
from tests.support.engines import build_engine
from tools.engines_page import ENGINE_CLASSES

SLOTS = 2
REAL_MODEL_MARKS = [pytest.mark.needs("llamacpp"), pytest.mark.real_model]
TOKEN_ENGINES = ("vllm", "sglang", "llamacpp-server")
# Every configuration in which an engine behaves differently for its callers.
CONFIGS = {
    "fake-chat": Config.from_settings(engine="fake", fake_level="chat"),
    "fake-text": Config.from_settings(engine="fake", fake_level="text"),
    "fake-tokens": Config.from_settings(engine="fake", fake_level="tokens"),
    "fake-harmony": Config.from_settings(engine="fake", fake_level="harmony"),
    "llamacpp": Config.from_settings(engine="llamacpp", context=1024, slots=SLOTS),
    "openvino": Config.from_settings(engine="openvino", context=1024, slots=SLOTS),
    **{name: Config.from_settings(engine=name) for name in ENGINES if name not in ("fake", "llamacpp", "openvino")},
    **{f"{name}, token prompts": Config.from_settings(engine=name, engine_level="tokens") for name in TOKEN_ENGINES},
    "llamacpp-server, real": Config.from_settings(engine="llamacpp-server"),
    "llamacpp-server, real, token prompts": Config.from_settings(engine="llamacpp-server", engine_level="tokens"),
}
for kind in [kind for kind, named in REAL_ENGINES.items() if named]:  # set by `make test-engines`
    CONFIGS[f"{kind}, real"] = Config.from_settings(engine=kind)
    CONFIGS[f"{kind}, real, token prompts"] = Config.from_settings(engine=kind, engine_level="tokens")
MODEL_CONFIGS = {"llamacpp", "openvino", "llamacpp-server, real", "llamacpp-server, real, token prompts"}
CACHE_COUNTERS = {"fake", "llamacpp", "vllm", "sglang", "llamacpp-server", "openai"}  # these report cached tokens

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400)]


def get_marks(config_name: str) -> list[pytest.MarkDecorator]:
    if config_name == "openvino":
        return [pytest.mark.needs("openvino"), pytest.mark.real_model, pytest.mark.real_engine]
    if config_name in MODEL_CONFIGS:
        return REAL_MODEL_MARKS
    return [pytest.mark.real_engine] if ", real" in config_name else []


@pytest.fixture(
    scope="module", params=[pytest.param(config_name, marks=get_marks(config_name)) for config_name in CONFIGS]
)
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    config_name, config = request.param, CONFIGS[request.param]
    if config_name in MODEL_CONFIGS:
        fetch_model(DEFAULT_MODEL, cache_home())
    async with AsyncExitStack() as stack:
        if (name := config_name.partition(", token prompts")[0]) in ENGINE_CLASSES:  # against a stub of its server
            config = config.with_settings(engine=(await stack.enter_async_context(run_stub(name))).url)
        elif config.inference.engine == "llamacpp-server":
            config = config.with_settings(engine=await stack.enter_async_context(real_llamacpp_server()))
        elif location := REAL_ENGINES.get(str(config.inference.engine)):
            if reason := location.explain_missing():
                pytest.skip(f"real engine: {reason}")
            config = config.with_settings(engine=stack.enter_context(location.run()))
        engine = build_engine(config)
        await engine.open()
        yield engine
        await engine.close()


@asynccontextmanager
async def real_llamacpp_server() -> AsyncIterator[str]:
    """Run the llama.cpp server that the embedded engine starts as its child process, and yield its URL."""
    embedded = LlamaCpp(LlamaCppSettings(context=1024, slots=SLOTS))
    await embedded.open()
    try:
        (model,) = embedded.loaded_models
        assert model.child is not None
        yield f"llamacpp-server+unix://{model.child.socket}"
    finally:
        await embedded.close()


class GenerationResult(Struct):
    lists: list[list[Chunk]]

    @property
    def chunks(self) -> list[Chunk]:
        return [chunk for chunks in self.lists for chunk in chunks]

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)


async def make_prompt(engine: Engine, *texts: str) -> Prompt:
    """Build a prompt at the level that the engine requires."""
    roles = ("user", "assistant")
    messages = ({"role": roles[number % 2], "content": text} for number, text in enumerate(texts))
    chat = ChatPrompt(tuple(messages))
    capabilities = await engine.capabilities(engine.models()[0].id)
    if capabilities.architecture == "gpt_oss":
        return render_harmony(chat, HarmonySettings(today="2026-01-01", opening="final"))
    return chat if capabilities.template is None else render_text(capabilities.template, chat, datetime(2026, 1, 1))


async def make_request(
    engine: Engine, *texts: str, constraint: JsonObject | JsonSchema | None = None, **sampling: Any
) -> GenerationRequest:
    """Build a request with greedy sampling unless `sampling` sets another, so that no test depends on chance."""
    rendered = await make_prompt(engine, *texts)
    if not sampling.keys() & {"temperature", "seed"}:
        sampling["temperature"] = 0.0
    return GenerationRequest(
        model=engine.models()[0].id, prompt=rendered, sampling=Sampling(**sampling), constraint=constraint
    )


async def run_generation(engine: Engine, *texts: str, **fields: Any) -> GenerationResult:
    async with asyncio.timeout(60), aclosing(engine.generate(await make_request(engine, *texts, **fields))) as lists:
        return GenerationResult([chunks async for chunks in lists])


async def require_field(engine: Engine, field: str) -> None:
    """Skip the test if the engine does not support the field."""
    if field not in (await engine.capabilities(engine.models()[0].id)).supported_fields:
        pytest.skip(f"not applicable: {engine.name} does not support the {field} field")


def test_every_registered_engine_is_tested_here() -> None:
    assert {config.inference.engine for config in CONFIGS.values()} == ENGINES.keys()


async def test_the_engine_lists_its_models(engine: Engine) -> None:
    assert engine.models()
    assert len({model.id for model in engine.models()}) == len(engine.models())
    assert all(engine.serves(model.id) for model in engine.models())
    assert engine.is_healthy()
    assert ENGINES[engine.name].endswith(f":{type(engine).__name__}")


async def test_only_the_last_chunk_has_a_finish_reason_and_counts(engine: Engine) -> None:
    result = await run_generation(engine, "Hello!", max_tokens=8)
    *others, last = result.chunks
    assert last.finish in ("stop", "length")
    assert last.counts is not None
    assert 0 < last.counts.output_tokens <= 8
    assert last.counts.input_tokens > 0
    assert {(chunk.finish, chunk.counts) for chunk in others} <= {(None, None)}
    assert all(chunks or isinstance(chunks, PushStream) for chunks in result.lists)  # no other list is empty


async def test_pushed_chunks_equal_iterated_chunks(engine: Engine) -> None:
    iterated = await run_generation(engine, "Hello!", max_tokens=8)
    pushed = GenerationResult([])
    async with (
        asyncio.timeout(60),
        aclosing(engine.generate(await make_request(engine, "Hello!", max_tokens=8))) as lists,
    ):
        async for chunks in lists:
            if isinstance(chunks, PushStream):
                await chunks.push_to(pushed.lists.append)
            else:
                pushed.lists.append(chunks)
    assert pushed.text == iterated.text
    *others, last = pushed.chunks
    assert last.finish == iterated.chunks[-1].finish
    assert last.counts is not None
    assert {(chunk.finish, chunk.counts) for chunk in others} <= {(None, None)}


async def test_every_supported_prompt_level_is_answered(engine: Engine) -> None:
    capabilities = await engine.capabilities(engine.models()[0].id)
    for level in sorted({capabilities.level} | capabilities.other_levels):
        if (rendered := await make_prompt_of_level(level, engine, "Hello!")) is None:
            continue
        request = GenerationRequest(
            model=engine.models()[0].id, prompt=rendered, sampling=Sampling(max_tokens=3, temperature=0.0)
        )
        async with asyncio.timeout(60), aclosing(engine.generate(request)) as lists:
            last = GenerationResult([chunks async for chunks in lists]).chunks[-1]
        assert last.finish in ("stop", "length"), level
        assert last.counts is not None
        assert last.counts.input_tokens > 0, level
        assert 0 < last.counts.output_tokens <= 3, level


async def make_prompt_of_level(level: str, engine: Engine, text: str) -> Prompt | None:
    """Build a prompt of the level, or return None if the engine cannot tokenize one."""
    model, text_prompt = engine.models()[0].id, TextPrompt((Segment(text, control=False),))
    match level:
        case "chat":
            return ChatPrompt(({"role": "user", "content": text},))
        case "text":
            return text_prompt
    supported = (await engine.capabilities(model)).tasks
    return TokenPrompt(await engine.tokenize(model, text_prompt)) if "tokenize" in supported else None


async def test_a_truncated_answer_has_the_finish_reason_length(engine: Engine) -> None:
    last = (await run_generation(engine, "Say a lot about many things.", max_tokens=2)).chunks[-1]
    assert last.finish == "length"
    assert last.counts is not None
    assert last.counts.output_tokens == 2


async def test_counted_tokens_equal_the_input_tokens_of_the_model(engine: Engine) -> None:
    model = engine.models()[0].id
    if not (await engine.capabilities(model)).can_count_tokens:
        pytest.skip(f"not applicable: {engine.name} cannot count tokens")
    last = (await run_generation(engine, "How many tokens are these?", max_tokens=1)).chunks[-1]
    assert last.counts is not None
    assert (
        await engine.count_tokens(model, await make_prompt(engine, "How many tokens are these?"))
        == last.counts.input_tokens
    )


@pytest.mark.shows("C.9")
async def test_a_second_turn_reuses_the_cached_prefix_of_the_first(engine: Engine) -> None:
    if engine.name not in CACHE_COUNTERS:
        pytest.skip(f"not applicable: {engine.name} does not report cached tokens")
    long = "Tell me something long about the sea. " * 17  # vLLM caches blocks of 128 tokens on a CPU
    first = await run_generation(engine, long, max_tokens=3)
    second = await run_generation(engine, long, first.text, "And now?", max_tokens=1)
    assert second.chunks[-1].counts is not None
    assert second.chunks[-1].counts.cached_tokens > 0


@pytest.mark.parametrize("chunk_count", [0, 1])
async def test_closing_the_stream_frees_its_slot(engine: Engine, chunk_count: int) -> None:
    """Runs more requests than there are slots: the last one would wait forever if a slot leaked."""
    for _ in range(2 * SLOTS):
        async with (
            asyncio.timeout(30),
            aclosing(engine.generate(await make_request(engine, "Go on.", max_tokens=500))) as lists,
        ):
            for _ in range(chunk_count):
                await anext(lists)
    assert (await run_generation(engine, "Hello!", max_tokens=1)).chunks[-1].finish == "length"


async def test_cancelling_the_task_frees_its_slot(engine: Engine) -> None:
    for _ in range(2 * SLOTS):
        task = asyncio.ensure_future(run_generation(engine, "Go on.", max_tokens=500))
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=30)
        assert task.done()
    assert (await run_generation(engine, "Hello!", max_tokens=1)).chunks[-1].finish == "length"


async def test_more_requests_than_slots_are_all_completed(engine: Engine) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(run_generation(engine, f"Number {number}", max_tokens=4)) for number in range(3 * SLOTS)
        ]
    assert all(task.result().chunks[-1].finish for task in tasks)


@pytest.mark.parametrize("included", [False, True])
@pytest.mark.shows("A3.9")
async def test_a_stop_string_ends_the_answer_and_is_omitted_unless_included(engine: Engine, included: bool) -> None:
    await require_field(engine, "include_stop_str_in_output" if included else "stop")
    unstopped = (await run_generation(engine, "Hello, how are you?", max_tokens=12, temperature=0.0)).text
    stop = unstopped[5:7]
    fields = {"max_tokens": 12, "temperature": 0.0, "include_stop_str_in_output": included}
    result = await run_generation(engine, "Hello, how are you?", stop=(stop,), **fields)
    assert result.text == unstopped[: unstopped.index(stop)] + (stop if included else "")
    assert result.chunks[-1].finish == "stop"


@pytest.mark.shows("A3.7")
async def test_a_seed_makes_an_answer_repeatable(engine: Engine) -> None:
    await require_field(engine, "seed")
    texts = {(await run_generation(engine, "Hello!", max_tokens=6, seed=3, temperature=1.5)).text for _ in range(2)}
    assert len(texts) == 1


async def test_logprob_tokens_join_to_the_text(engine: Engine) -> None:
    await require_field(engine, "top_logprobs")
    result = await run_generation(engine, "Hello!", max_tokens=4, logprobs=2)
    logprobs = [logprob for chunk in result.chunks for logprob in chunk.logprobs]
    assert "".join(logprob.token for logprob in logprobs) == result.text
    assert all(logprob.logprob <= 0 and len(logprob.top_logprobs) == 2 for logprob in logprobs)
    assert not [
        chunk.logprobs for chunk in (await run_generation(engine, "Hello!", max_tokens=4)).chunks if chunk.logprobs
    ]


@pytest.mark.shows("A.33", "D.10")
async def test_the_output_conforms_to_the_schema(engine: Engine) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "size": {"enum": ["small", "large"]}},
        "required": ["ok", "size"],
        "additionalProperties": False,
    }
    result = await run_generation(engine, "Well?", constraint=JsonSchema(schema), max_tokens=60)
    assert result.chunks[-1].finish == "stop"
    assert jsonschema_rs.is_valid(schema, json.loads(result.text))


@pytest.mark.shows("A.34", "D.10")
async def test_the_output_is_a_json_object_if_one_is_required(engine: Engine) -> None:
    result = await run_generation(engine, "Answer in JSON.", constraint=JsonObject(), max_tokens=40)
    assert result.chunks[-1].finish == "length" or isinstance(json.loads(result.text), dict)


async def find_model(engine: Engine, *tasks: Task) -> str:
    """Return a model that supports all the tasks, or skip the test."""
    for model in engine.models():
        if (await engine.capabilities(model.id)).tasks.issuperset(tasks):
            return model.id
    pytest.skip(f"not applicable: {engine.name} has no model for {' and '.join(tasks)} tasks")


@pytest.mark.shows("C.27")
async def test_every_text_gets_a_vector_and_equal_texts_get_equal_vectors(engine: Engine) -> None:
    model = await find_model(engine, "embed")
    async with asyncio.timeout(60):
        embeddings = await engine.embed(model, ["the cat sat", "a law was passed", "the cat sat"])
    one, other, again = embeddings.vectors
    assert len(one) == len(other)
    assert one == pytest.approx(again, abs=1e-3)
    assert one != pytest.approx(other, abs=1e-3)
    assert embeddings.tokens > 2


@pytest.mark.shows("G.6")
async def test_detokenize_reverses_tokenize(engine: Engine) -> None:
    model = await find_model(engine, "tokenize", "detokenize")
    text = TextPrompt((Segment("How many tokens are these?", control=True),))
    tokens = await engine.tokenize(model, text, special=False)
    assert await engine.detokenize(model, tokens) == "How many tokens are these?"
    assert len(await engine.tokenize(model, text)) - len(tokens) in range(3)


async def test_an_unsupported_task_raises_a_typed_error(engine: Engine) -> None:
    """Callers normally check `Capabilities.tasks` first."""
    model = engine.models()[0].id
    supported = (await engine.capabilities(model)).tasks
    tasks: list[Task] = ["score", "rerank", "classify", "pooling", "transcribe", "translate"]
    for task in [task for task in tasks if task not in supported]:
        with pytest.raises((UnsupportedParameter, EngineFailed)):
            await engine.pass_through(model, task, b"{}")
    if "embed" not in supported:
        with pytest.raises((UnsupportedParameter, EngineFailed)):
            await engine.embed(model, ["a"])


async def test_a_closed_engine_can_be_opened_again(engine: Engine) -> None:
    await engine.close()
    await engine.open()
    assert engine.is_healthy()
    assert (await run_generation(engine, "Hello!", max_tokens=1)).text is not None
