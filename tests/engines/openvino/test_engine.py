"""OpenVINO with the default model: what the contract of engines does not say. `make test` runs a part of it.

Covers `engines/openvino/child.py`, `engines/openvino/loader.py`, `engines/openvino/server.py` and
`engines/openvino/generation.py`.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from antiphon.core.prompt import Grammar, JsonSchema, Segment, StructuralTag, TextPrompt
from antiphon.engines.llamacpp.engine import LlamaCpp, LlamaCppSettings
from antiphon.engines.openvino.converted_models import find_converted
from antiphon.engines.openvino.engine import OpenVino, OpenVinoSettings
from antiphon.errors import ContextTooLong, EngineFailed, InvalidValue
from bench.harness.process_meter import cpu_ns
from tests.engines.llamacpp.generation import SlotMonitor, get_child, make_request, random_prompt, run_generation
from tests.engines.llamacpp.test_cancel import is_within, measure_decode_cancel, measure_prefill_cancel

pytestmark = [pytest.mark.anyio, pytest.mark.needs("openvino"), pytest.mark.real_model, pytest.mark.timeout(400)]

OK_SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


@pytest.fixture
async def slots(engine: OpenVino) -> AsyncIterator[SlotMonitor]:
    slots = SlotMonitor(engine)
    yield slots
    slots.close()


@pytest.mark.real_engine
@pytest.mark.shows("C.10")
async def test_closing_in_decode_frees_the_slot_within_a_tenth_of_a_second(
    engine: OpenVino, slots: SlotMonitor
) -> None:
    assert await is_within(0.1, lambda: measure_decode_cancel(engine, slots), tries=10, share=0.9)


@pytest.mark.real_engine
@pytest.mark.shows("C.10")
async def test_closing_in_prefill_frees_the_slot_within_a_second(engine: OpenVino, slots: SlotMonitor) -> None:
    assert await is_within(1.0, lambda: measure_prefill_cancel(engine, slots), tries=3, share=1.0)


@pytest.mark.real_engine
@pytest.mark.shows("C.29")
async def test_both_engines_tokenize_alike_and_text_never_becomes_a_control_token(
    engine: OpenVino, model_file: Path
) -> None:
    llamacpp = LlamaCpp(LlamaCppSettings(model=(f"small={model_file}",), context=256, slots=1))
    await llamacpp.open()
    try:
        for text in ("  two spaces\n\nx", "é 😀 naïve", "it's 3.14", "<|im_start|>system", "\x00\t\r\n", "中文 テスト"):
            prompt = TextPrompt(
                (Segment("<|im_start|>user\n", True), Segment(text, False), Segment("<|im_end|>", True))
            )
            tokens = await engine.tokenize("small", prompt)
            assert tokens == await llamacpp.tokenize("small", prompt), text
            assert tokens.count(1) == 1  # <|im_start|>
            assert await engine.detokenize("small", tokens) == f"<|im_start|>user\n{text}<|im_end|>"
    finally:
        await llamacpp.close()


@pytest.mark.shows("C.29")
async def test_grammars_and_structural_tags_are_enforced(engine: OpenVino) -> None:
    regex = await run_generation(engine, make_request("Well?", Grammar("regex", "[a-c]{3}"), max_tokens=20))
    assert len(regex.text) == 3
    assert not set(regex.text) - set("abc")
    ebnf = await run_generation(engine, make_request("Well?", Grammar("gbnf", 'root ::= "yes" | "no"'), max_tokens=20))
    assert ebnf.text in ("yes", "no")
    tag = {"type": "tag", "begin": "<a>", "content": {"type": "regex", "pattern": "[0-9]{2}"}, "end": "</a>"}
    constraint = StructuralTag({"type": "structural_tag", "format": tag})
    tagged = await run_generation(engine, make_request("Well?", constraint, max_tokens=30))
    assert tagged.text.startswith("<a>")
    assert tagged.text.endswith("</a>")


@pytest.mark.shows("C.29")
@pytest.mark.parametrize(
    ("constraint", "param"),
    [
        (JsonSchema({"type": "nonsense"}), "text.format.schema"),
        (Grammar("regex", "[a-"), "text.format"),
        (Grammar("gbnf", "root ::= missing"), "text.format"),
    ],
)
async def test_a_constraint_that_cannot_be_compiled_affects_no_other_request(
    engine: OpenVino, constraint: JsonSchema | Grammar, param: str
) -> None:
    """In the pipeline it would make every further step fail."""
    other = asyncio.ensure_future(run_generation(engine, make_request("Go on.", max_tokens=12, ignore_eos=True)))
    with pytest.raises(InvalidValue) as raised:
        await run_generation(engine, make_request("Hello!", constraint, max_tokens=4))
    assert raised.value.param == param
    assert "/home" not in str(raised.value)
    assert (await other).counts.output_tokens == 12
    valid = await run_generation(engine, make_request("Hello!", JsonSchema(OK_SCHEMA), max_tokens=200))
    assert valid.last.finish == "length" or json.loads(valid.text).keys() == {"ok"}


@pytest.mark.real_engine
@pytest.mark.shows("C.9", "C.29")
async def test_a_repeated_prompt_is_not_computed_again(engine: OpenVino) -> None:
    prompt = random_prompt(900)
    pid = get_child(engine).pid

    async def measure() -> int:
        before = cpu_ns(pid)
        await run_generation(engine, make_request(prompt, max_tokens=1))
        return cpu_ns(pid) - before

    first = await measure()
    assert await measure() < first / 3


@pytest.mark.real_engine
@pytest.mark.shows("C.8", "C.29")
async def test_requests_wait_until_the_cache_has_room(engine: OpenVino) -> None:
    """Four prompts of 700 tokens do not fit into a cache of 2048; all are answered."""
    async with asyncio.timeout(200), asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(
                run_generation(engine, make_request(random_prompt(700), max_tokens=4, ignore_eos=True), 200)
            )
            for _ in range(4)
        ]
    assert [task.result().counts.output_tokens for task in tasks] == [4] * 4


@pytest.mark.real_engine
async def test_a_prompt_that_fills_the_context_is_rejected(engine: OpenVino) -> None:
    with pytest.raises(ContextTooLong):
        await run_generation(engine, make_request(random_prompt(1024), max_tokens=1))
    result = await run_generation(engine, make_request(random_prompt(1020), ignore_eos=True))
    assert (result.counts.output_tokens, result.last.finish) == (4, "length")


async def test_stop_tokens_and_token_ids_are_honoured(engine: OpenVino) -> None:
    plain = await run_generation(engine, make_request("Hello!", max_tokens=6))
    tokens = [token for chunk in plain.chunks for token in chunk.tokens]
    assert len(tokens) == 6
    stopped = await run_generation(
        engine, make_request("Hello!", max_tokens=6, stop_token_ids=(tokens[3],), return_token_ids=True)
    )
    assert stopped.last.finish == "stop"
    assert stopped.chunks[0].extras is not None
    assert stopped.chunks[0].extras.prompt_token_ids


@pytest.mark.shows("A3.12", "C.29")
async def test_the_log_probability_of_each_token_is_returned(engine: OpenVino) -> None:
    result = await run_generation(engine, make_request("Hello!", max_tokens=4, logprobs=0))
    logprobs = [logprob for chunk in result.chunks for logprob in chunk.logprobs]
    assert "".join(logprob.token for logprob in logprobs) == result.text
    assert all(logprob.logprob <= 0 and not logprob.top_logprobs for logprob in logprobs)
    capabilities = await engine.capabilities("small")
    assert not capabilities.supported_fields & {"top_logprobs", "logit_bias"}


@pytest.mark.real_engine
@pytest.mark.shows("A3.13")
async def test_the_results_of_a_beam_search_are_returned_best_first(engine: OpenVino) -> None:
    texts = [
        (await run_generation(engine, make_request("Hello!", max_tokens=6, best_of=3, beam=beam))).text
        for beam in range(3)
    ]
    assert len(set(texts)) == 3


@pytest.mark.real_engine
@pytest.mark.shows("C.5", "C.28", "C.29")
async def test_a_killed_child_fails_its_request_at_once_and_the_next_one_succeeds(engine: OpenVino) -> None:
    async with asyncio.timeout(60), aclosing(engine.generate(make_request("Go on.", ignore_eos=True))) as lists:
        await anext(lists)
        os.kill(get_child(engine).pid, signal.SIGKILL)
        async with asyncio.timeout(20):
            with pytest.raises(EngineFailed, match="closed the connection in the middle of its response"):
                async for _ in lists:
                    pass
    result = await run_generation(engine, make_request("Hello!", max_tokens=2, ignore_eos=True), 200)
    assert result.counts.output_tokens == 2
    assert engine.is_healthy()


@pytest.mark.real_engine
@pytest.mark.shows("C.29")
async def test_a_converted_model_is_loaded_as_a_folder(engine: OpenVino, model_file: Path, tmp_path: Path) -> None:
    """The converted form in the cache, with the JSON files of a converter, is a model of its own."""
    folder = tmp_path / "smol"
    folder.mkdir()
    for file in find_converted(model_file, engine.settings.cache_dir).iterdir():
        (folder / file.name).symlink_to(file)
    special = {"0": {"content": "<|endoftext|>"}, "1": {"content": "<|im_start|>"}, "2": {"content": "<|im_end|>"}}
    tokens = {id: {**token, "special": True} for id, token in special.items()}
    config = {"model_type": "llama", "max_position_embeddings": 512, "vocab_size": 49152}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": tokens, "eos_token": "<|im_end|>"})
    )
    other = OpenVino(OpenVinoSettings(model=(f"folder={folder}",), slots=2, prompt_lookup=True, cache_tokens=1024))
    await other.open()
    try:
        assert (await other.capabilities("folder")).context == 512
        assert {"num_assistant_tokens", "max_ngram_size"} <= (await other.capabilities("folder")).supported_fields
        request = make_request("Repeat: the cat sat on the mat, the cat sat", model="folder", max_tokens=24)
        guessed = await run_generation(other, request)
        plain = await run_generation(engine, make_request("Repeat: the cat sat on the mat, the cat sat", max_tokens=24))
        assert guessed.text == plain.text
        assert len(guessed.chunks) < len(plain.chunks)  # several tokens at a time
    finally:
        await other.close()


@pytest.mark.real_engine
@pytest.mark.shows("C.29", "A3.15")
async def test_a_draft_model_guesses_several_tokens(engine: OpenVino, model_file: Path) -> None:
    draft = find_converted(model_file, engine.settings.cache_dir)
    settings = OpenVinoSettings(
        model=(f"small={model_file}",), context=512, slots=2, draft_model=draft, cache_tokens=1024
    )
    assisted = OpenVino(settings)
    await assisted.open()
    try:
        request = make_request("Hello!", max_tokens=16, num_assistant_tokens=4)
        guessed = await run_generation(assisted, request)
        assert guessed.text == (await run_generation(engine, make_request("Hello!", max_tokens=16))).text
        assert len(guessed.chunks) < 16
        threshold = make_request("Hello!", max_tokens=4, assistant_confidence_threshold=0.4)
        assert (await run_generation(assisted, threshold)).counts.output_tokens == 4
        assert (await run_generation(assisted, make_request("Hello!", max_tokens=4))).counts.output_tokens == 4
    finally:
        await assisted.close()
