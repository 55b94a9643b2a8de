"""One model call: which chunks are noted, log probabilities that an engine does not return, and what a retry costs."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.agent.engine_stream import EngineStream, ModelCall
from antiphon.agent.model_call_run import ModelCallRun
from antiphon.agent.tool_resolver import ToolCallResolver
from antiphon.core.deltas import Delta, EncryptedReasoning, ReasoningDelta, Summary, Text
from antiphon.core.prompt import Chunk, EngineExtras, Sampling, TokenCounts
from antiphon.engines.fake import FakeEngine
from antiphon.errors import UnsupportedParameter
from antiphon.parsers.chat import ChatParser
from antiphon.protocol.types.parts import Logprob
from tests.agent.run_endings import GENERATION

pytestmark = pytest.mark.anyio

SCORED = Text("a", (Logprob(token="a", logprob=-0.5, bytes=[97]),))


def make_model_run(engine: FakeEngine, notes: list[Chunk] | None = None, **changes: Any) -> ModelCallRun[Delta]:
    generation = replace(GENERATION, sampling=changes.pop("sampling", Sampling()))
    call = ModelCall(
        engine=engine,
        generation=generation,
        parser=ChatParser(generation.prompt),
        resolver=ToolCallResolver({}),
        **changes,
    )
    note = None if notes is None else notes.append
    return ModelCallRun(call, EngineStream(call), _list_deltas, _list_deltas, note)


def _list_deltas(deltas: Iterable[Delta]) -> list[Delta]:
    return [*deltas]


async def drive(run: ModelCallRun[Delta]) -> list[Delta]:
    deltas: list[Delta] = []
    async with asyncio.timeout(30):
        try:
            await run.drive(deltas.extend)
        finally:
            await run.close()
    return deltas


PLAIN = Chunk(text="a")
WITH_TOKENS = Chunk(text="b", tokens=(1,))
WITH_EXTRAS = Chunk(text="c", extras=EngineExtras(stop_reason="c"))


@pytest.mark.parametrize(("return_token_ids", "noted"), [(False, [WITH_EXTRAS]), (True, [WITH_TOKENS, WITH_EXTRAS])])
async def test_chunks_with_more_than_output_are_noted(
    engine: FakeEngine, return_token_ids: bool, noted: list[Chunk]
) -> None:
    notes: list[Chunk] = []
    run = make_model_run(engine, notes, sampling=Sampling(return_token_ids=return_token_ids))
    assert run.feed([PLAIN, WITH_TOKENS, WITH_EXTRAS]) == [Text("a"), Text("b"), Text("c")]
    assert notes == noted
    assert make_model_run(engine).feed([WITH_EXTRAS]) == [Text("c")]  # nobody notes it


@pytest.mark.parametrize("texts", [[Text("a"), Text("b")], [Text(""), Text("a")]])
async def test_text_without_the_requested_log_probabilities_fails_the_call(
    engine: FakeEngine, texts: list[Text]
) -> None:
    engine.says(*texts)
    with pytest.raises(UnsupportedParameter) as raised:
        await drive(make_model_run(engine, logprobs_field="top_logprobs"))
    assert raised.value.param == "top_logprobs"


@pytest.mark.parametrize("texts", [[SCORED], [Text("b"), SCORED], [SCORED, Text("b")], [Text("")]])
async def test_log_probabilities_of_a_part_of_the_text_are_enough(engine: FakeEngine, texts: list[Text]) -> None:
    engine.says(*texts)
    shown = await drive(make_model_run(engine, logprobs_field="logprobs"))
    assert shown == [text for text in texts if text.text]
    engine.says(Text("a"))
    await drive(make_model_run(engine))  # they are not requested


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, [ReasoningDelta, Text]),
        ({"summarise_reasoning": True}, [Summary, Text]),
        ({"encrypt_reasoning": str.upper}, [ReasoningDelta, EncryptedReasoning, Text]),
    ],
)
async def test_reasoning_is_summarised_or_encrypted_where_requested(
    engine: FakeEngine, changes: dict[str, Any], kinds: list[type]
) -> None:
    engine.says(ReasoningDelta("hm"), Text("a"))
    assert [type(delta) for delta in await drive(make_model_run(engine, **changes))] == kinds


async def test_the_counts_of_a_call_are_those_of_its_last_chunk(engine: FakeEngine) -> None:
    engine.says(Text("a"), counts=TokenCounts(input_tokens=3, output_tokens=2))
    run = make_model_run(engine)
    await drive(run)
    assert run.total_counts == TokenCounts(input_tokens=3, output_tokens=2)
    assert run.attempt_counts == [run.total_counts]
