"""Traces of runs: what is recorded of the model's calls and of the tools, and the spans that are exported."""

import asyncio
import json
from typing import Any

import pytest

from antiphon.agent import run_tracer
from antiphon.agent.completion_run import CompletionRun
from antiphon.agent.engine_stream import ModelCall
from antiphon.agent.run import Run
from antiphon.agent.run_tracer import CallTrace, RunTracer
from antiphon.agent.tool_resolver import ToolCallResolver
from antiphon.core.deltas import Text
from antiphon.core.dialects.dialect import PlainTextEmitter
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.prompt import (
    ChatPrompt,
    Chunk,
    GenerationRequest,
    Sampling,
    Segment,
    TextPrompt,
    TokenCounts,
    TokenPrompt,
)
from antiphon.engines.fake import FakeEngine
from antiphon.errors import AntiphonError, EngineFailed
from antiphon.ids import ItemIds
from antiphon.parsers.chat import ChatParser
from antiphon.protocol.types.response import Response
from antiphon.tools.base import ModelToolCall
from tests.agent.run_endings import GENERATION
from tests.observe.test_spans import RecordingTracer

pytestmark = pytest.mark.anyio
COUNTS = TokenCounts(input_tokens=7, cached_tokens=1, output_tokens=2)


class TracedRun:
    """A run of the fake engine, its trace and the spans that it exports."""

    def __init__(self, engine: FakeEngine, *, retain_chunks: bool = False, content: bool = False) -> None:
        self.exporter = RecordingTracer()
        self.exporter.content = content
        self.ended: list[RunTracer] = []
        call = ModelCall(
            engine=engine,
            generation=GENERATION,
            parser=ChatParser(GENERATION.prompt),
            resolver=ToolCallResolver({}),
            new_tracer=lambda id: RunTracer(id, self.exporter, retain_chunks, self.ended.append),
        )
        self.run = CompletionRun([call], PlainTextEmitter(), lambda run: None)

    async def fold(self) -> str:
        async with asyncio.timeout(30):
            return (await self.run.fold_text()).text

    @property
    def call(self) -> CallTrace:
        (tracer,) = self.ended
        (call,) = tracer.calls
        return call


def test_the_trace_of_an_abandoned_run_ends_once(engine: FakeEngine) -> None:
    ended: list[RunTracer] = []
    call = ModelCall(
        engine=engine,
        generation=GENERATION,
        parser=ChatParser(GENERATION.prompt),
        resolver=ToolCallResolver({}),
        new_tracer=lambda id: RunTracer(id, None, False, ended.append),
    )
    response = Response(id="resp_1", created_at=1, model="fake")
    run = Run(call, Emitter(response, ItemIds("resp_1")), lambda run: None)
    for status in ("taken over", "lost"):
        run.abandon(status)
    assert [(tracer.id, tracer.status) for tracer in ended] == [("resp_1", "taken over")]


@pytest.mark.parametrize("retain_chunks", [False, True])
async def test_a_run_and_its_call_are_recorded(engine: FakeEngine, retain_chunks: bool) -> None:
    engine.says(Text("Hel"), Text("lo"), counts=COUNTS)
    traced = TracedRun(engine, retain_chunks=retain_chunks)
    assert await traced.fold() == "Hello"
    assert (traced.ended[0].status, traced.ended[0].error) == ("completed", "")
    call = traced.call
    assert (call.finish, call.counts, call.error) == ("stop", COUNTS, "")
    assert call.ready_at is not None
    assert call.first_at is not None
    assert call.ended_at is not None
    assert "".join(chunk.text for chunk in call.chunks) == ("Hello" if retain_chunks else "")
    chat, agent = traced.exporter.spans
    assert (chat.name, agent.name) == ("chat fake", "invoke_agent")
    assert agent.attributes["antiphon.response.status"] == "completed"
    assert agent.attributes["gen_ai.usage.input_tokens"] == 7
    assert "gen_ai.response.id" not in agent.attributes  # there is none
    assert chat.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    seconds = chat.attributes["gen_ai.response.time_to_first_chunk"]
    assert isinstance(seconds, float)
    assert 0 <= seconds < 30
    assert {"gen_ai.request.seed", "gen_ai.input.messages", "error.type"}.isdisjoint(chat.attributes)


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize(
    ("error", "code"), [(EngineFailed("It died."), EngineFailed("").code), (RuntimeError(), "RuntimeError")]
)
async def test_the_error_of_a_call_is_recorded(engine: FakeEngine, after: int, error: Exception, code: str) -> None:
    engine.says(Text("Hel"))
    engine.fails(error, after=after)
    traced = TracedRun(engine)
    with pytest.raises(AntiphonError):
        await traced.fold()
    assert traced.ended[0].status == "failed"
    assert (traced.call.error, traced.call.finish) == (code, None)
    assert traced.call.ended_at is not None
    chat, agent = traced.exporter.spans
    assert chat.attributes["error.type"] == chat.error == code
    assert agent.error == traced.ended[0].error != ""


async def test_a_run_that_is_closed_ends_its_call_and_its_trace(engine: FakeEngine) -> None:
    engine.says(Text("Hel"), Text("lo"))
    engine.holds(after=1)
    traced = TracedRun(engine)
    await traced.run.begin()
    await traced.run.close()
    assert (traced.ended[0].status, traced.call.error) == ("cancelled", "")
    assert traced.call.ended_at is not None
    assert len(traced.exporter.spans) == 2


async def test_prompts_and_outputs_are_exported_only_if_that_is_allowed(engine: FakeEngine) -> None:
    engine.says(Text("Hello"))
    traced = TracedRun(engine, content=True)
    await traced.fold()
    attributes = traced.exporter.spans[0].attributes
    assert json.loads(str(attributes["gen_ai.input.messages"])) == [
        {"role": "user", "parts": [{"type": "text", "content": "hi"}]}
    ]
    assert json.loads(str(attributes["gen_ai.output.messages"])) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "Hello"}], "finish_reason": "stop"}
    ]


CALLED = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}


@pytest.mark.parametrize(
    ("prompt", "parts"),
    [
        (TextPrompt((Segment("a", control=True), Segment("b", control=False))), [{"type": "text", "content": "ab"}]),
        (TokenPrompt((1, 2)), [{"type": "tokens", "content": [1, 2]}]),
        (ChatPrompt(messages=(CALLED,)), [{"type": "tool_call", "name": "f", "arguments": "{}"}]),
        (
            ChatPrompt(messages=({"content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},)),
            [{"type": "text", "content": "a"}, {"type": "image_url"}],
        ),
    ],
)
def test_every_kind_of_prompt_is_exported_as_messages(prompt: Any, parts: Any) -> None:
    exporter = RecordingTracer()
    exporter.content = True
    generation = GenerationRequest(model="fake", prompt=prompt, sampling=Sampling(seed=3))
    CallTrace("fake", generation, False, exporter).end(None, COUNTS, None)
    (span,) = exporter.spans
    assert span.attributes["gen_ai.request.seed"] == 3
    assert json.loads(str(span.attributes["gen_ai.input.messages"]))[0]["parts"] == parts
    assert json.loads(str(span.attributes["gen_ai.output.messages"]))[0]["finish_reason"] == ""
    assert {"gen_ai.response.finish_reasons", "gen_ai.response.time_to_first_chunk"}.isdisjoint(span.attributes)


def test_the_number_of_retained_chunks_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_tracer, "_MAX_CHUNKS", 2)
    trace = CallTrace("fake", GENERATION, True, None)
    feed = trace.wrap_feed(list)
    assert feed([]) == []
    assert trace.first_at is None
    for _ in range(3):
        feed([Chunk()])
        first_at = trace.first_at
    assert (len(trace.chunks), trace.first_at) == (2, first_at)


def test_tries_of_engines_are_recorded() -> None:
    trace = CallTrace("pool", GENERATION, False, None)
    trace.note_attempt("one", "")
    trace.note_attempt("one", "engine_failed")
    trace.note_attempt("two", "")
    assert [(attempt.engine, attempt.error, attempt.ended_at is None) for attempt in trace.attempts] == [
        ("one", "engine_failed", False),
        ("two", "", True),
    ]


@pytest.mark.parametrize(
    ("kind", "outcome", "error", "expected"),
    [("mcp", "completed", "", "extension"), ("shell", "timeout", "timeout", "function")],
)
def test_a_tool_call_is_a_span_with_its_outcome(kind: str, outcome: str, error: str, expected: str) -> None:
    exporter = RecordingTracer()
    tracer = RunTracer("resp_1", exporter, False)
    with tracer.start_tool(kind, ModelToolCall(key=0, id="call_1", name="f", arguments="{}")) as trace:
        trace.outcome = outcome
    (span,) = exporter.spans
    tracer.end("completed", "fake", COUNTS)
    assert tracer.tools == [trace]
    assert (span.name, span.error or "", trace.error) == ("execute_tool f", error, error)
    assert span.attributes["gen_ai.tool.type"] == expected
    assert "gen_ai.tool.call.arguments" not in span.attributes


def test_a_tool_call_that_raises_has_the_kind_of_its_error() -> None:
    exporter = RecordingTracer()
    exporter.content = True
    call = ModelToolCall(key=0, id="call_1", name="f", arguments="{}")
    tracer = RunTracer("resp_1", exporter, False)
    with pytest.raises(KeyError), tracer.start_tool("mcp", call):
        raise KeyError
    tracer.end("completed", "fake", COUNTS)
    assert exporter.spans[0].error == "KeyError"
    assert exporter.spans[0].attributes["gen_ai.tool.call.arguments"] == "{}"


def test_a_trace_ends_once_and_without_a_tracer_has_no_spans() -> None:
    ended: list[RunTracer] = []
    tracer = RunTracer("resp_1", None, False, ended.append)
    tracer.end("completed", "fake", COUNTS)
    tracer.end("failed", "fake", COUNTS, EngineFailed("late"))
    RunTracer("resp_2", None, False).end("completed", "", COUNTS)
    assert (ended, tracer.status, tracer.error) == ([tracer], "completed", "")
