"""sse.js and fold.js give the same Responses as the fold of the server, for every kind of stream in this repository."""

import base64
import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.config import Config
from antiphon.core.deltas import Delta, ItemAdded, Progress, ServerItemDone, ServerItemStarted
from antiphon.core.emitter.server_item_kinds import SERVER_ITEM_KINDS
from antiphon.core.prompt import Chunk, Segment, TextPrompt, TokenPrompt
from antiphon.engines.fake import FakeEngine
from antiphon.parsers.base import ParserOptions
from antiphon.parsers.calls.registry import FORMATS
from antiphon.parsers.harmony import HarmonyParser
from antiphon.parsers.raw import RawParser
from antiphon.parsers.reasoning import REASONING_FORMATS
from antiphon.protocol.types.events import Event
from antiphon.transport.operating.page import FOLDER
from antiphon.wiring import build_app
from tests.core.emitter.streams import ANY_ENDING, ENDINGS, any_deltas, emit_stream, encode_sse
from tests.core.emitter.tool_item_examples import CLIENT_ITEMS, SERVER_ITEMS, get_start
from tests.core.test_tool_loop_log import emit_tool_loop
from tests.golden.calls import recordings as golden_calls
from tests.golden.harmony import cases as golden_harmony
from tests.golden.reasoning import recordings as golden_reasoning
from tests.oracles.fold import fold_events
from tests.parsers.joined_deltas import NO_PROMPT, run_parser
from tests.protocol.decoding.recorded_requests import iter_create_requests
from tests.support.asgi_client import JSON, call
from tests.support.npm import run_node
from tests.support.paths import TESTS

pytestmark = [pytest.mark.anyio, pytest.mark.needs("node")]

# Fields of a recorded request that refer to what the recorded server had.
REFERENCES = ("previous_response_id", "conversation", "generate", "type", "stream_options")
GROWING = ("arguments", "input", "code")
PIECE = 7  # characters of an output that arrive together


def fold_in_page(streams: Sequence[bytes], folder: Path) -> list[dict[str, Any]]:
    """Fold streams with the code of the page, in node."""
    (folder / "streams.json").write_text(json.dumps([base64.b64encode(stream).decode() for stream in streams]))
    script = Path(__file__).parent / "node" / "fold.mjs"
    results: list[dict[str, Any]] = json.loads(run_node(str(script), str(FOLDER), "streams.json", folder=folder))
    return results


def check_streams(streams: Sequence[list[Event]], folder: Path) -> None:
    results = fold_in_page([encode_sse(events) for events in streams], folder)
    for events, result in zip(streams, results, strict=True):
        assert result["response"] == json.loads(msgspec.json.encode(fold_events(events)))


def check_bodies(bodies: Sequence[bytes], folder: Path) -> None:
    """Check streams that the server sent: against their last event, and at every stage."""
    for body, result in zip(bodies, fold_in_page(bodies, folder), strict=True):
        final = json.loads(body.removesuffix(b"data: [DONE]\n\n").rpartition(b"data: ")[2])["response"]
        assert result["response"] == final
        assert result["before"] == final["output"]
        assert [grown_text(item) for item in result["deltas"]] == [grown_text(item) for item in final["output"]]


def grown_text(item: dict[str, Any]) -> list[str]:
    """Return the texts of an item that arrive in deltas."""
    parts = [*(item.get("summary") or []), *(item.get("content") or [])]
    return [part.get("text", part.get("refusal", "")) for part in parts] + [str(item.get(name)) for name in GROWING]


async def stream_bodies(bodies: Sequence[dict[str, Any]], engine: FakeEngine) -> list[bytes]:
    """Send requests to the whole server and return the streams of those that it accepts."""
    config = Config.from_settings(engine="fake", store="memory", unserved_tools="ignore")
    app, streams = build_app(config, engine), []
    async with app.lifespan():
        for body in bodies:
            content = msgspec.json.encode({**body, "stream": True})
            answer = await call(app, "POST", "/v1/responses", JSON, body=(content,))
            if answer.status == 200:
                streams.append(answer.body)
    return streams


def drop_references(body: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded request without what refers to the recorded server, such as outputs of its calls."""
    kept = {name: value for name, value in body.items() if name not in REFERENCES}
    if isinstance(items := kept.get("input"), list):
        calls = {item.get("call_id") for item in items if not str(item.get("type")).endswith("_output")}
        own = [item for item in items if item.get("call_id") in {None, *calls}]
        kept["input"] = [item for item in own if item.get("type") != "item_reference"] or "hi"
    return kept


@pytest.mark.shows("H7.5")
async def test_recorded_requests_fold_to_the_same_responses(tmp_path: Path) -> None:
    bodies = [drop_references(body) for _, body in iter_create_requests()]
    bodies = [{**body, **changes} for body in bodies for changes in ({}, {"reasoning": {"effort": "low"}})]
    streams = await stream_bodies(bodies, FakeEngine())
    assert len(streams) == len(bodies)
    check_bodies(streams, tmp_path)


@pytest.mark.shows("H7.5")
async def test_golden_streams_of_engines_fold_to_the_same_responses(tmp_path: Path) -> None:
    engine, count = FakeEngine(), 0
    for path in sorted((TESTS / "golden").rglob("*.expected.json")):
        for step in json.loads(path.read_bytes()):
            if isinstance(step, dict) and step.get("chunks"):
                chunks = msgspec.convert(step["chunks"], list[Chunk])
                engine.says(*(chunk for chunk in chunks if chunk.finish is None), finish=chunks[-1].finish)
                count += 1
    assert count >= 60
    weather = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
    streams = await stream_bodies([{"model": "fake", "input": "hi", "tools": [weather]}] * count, engine)
    assert len(streams) == count
    check_bodies(streams, tmp_path)


@pytest.mark.shows("H7.5")
def test_tool_items_with_every_outcome_fold_to_the_same_responses(tmp_path: Path) -> None:
    streams: list[list[Event]] = [emit_tool_loop()[0]]
    for kind, ends in SERVER_ITEMS.items():
        start = ServerItemStarted(0, get_start(ends[0]))
        stages: list[Delta] = [Progress(0, stage) for stage in SERVER_ITEM_KINDS[kind].stages]
        streams += [emit_stream([start, *stages, ServerItemDone(0, end)]) for end in ends]
        streams += [emit_stream([start, *stages], ending) for ending in ENDINGS]
    streams += [emit_stream([ItemAdded(item) for item in CLIENT_ITEMS])]
    check_streams(streams, tmp_path)


def parse_golden_outputs() -> Iterator[list[Delta]]:
    """Yield the deltas of every golden output: of call formats, of families that reason, and of Harmony."""
    for form in FORMATS:
        for recording in golden_calls.load_recordings(form):
            options = ParserOptions(calls=form, tools=golden_calls.build_schemas(recording))
            yield run_parser(RawParser(NO_PROMPT, options), cut_text(recording.output))
    for family in REASONING_FORMATS:
        for thought in golden_reasoning.load_recordings(family):
            options = ParserOptions(reasoning=family, calls=thought.calls, prompt_hidden=thought.unseen)
            prompt = TextPrompt((Segment(thought.prompt, True),) if thought.prompt else ())
            yield run_parser(RawParser(prompt, options), cut_text(thought.output))
    for case in chain.from_iterable(map(golden_harmony.load_cases, golden_harmony.FILES)):
        prompt_tokens = TokenPrompt(golden_harmony.encode_tokens(case.prompt))
        parser = HarmonyParser(prompt_tokens, golden_harmony.make_parser_options(case))
        tokens = golden_harmony.encode_tokens(case.output)
        yield run_parser(parser, [Chunk(tokens=(token,)) for token in tokens])


def cut_text(text: str) -> list[Chunk]:
    return [Chunk(text=text[at : at + PIECE]) for at in range(0, len(text), PIECE)]


@pytest.mark.shows("H7.5")
def test_golden_outputs_of_models_fold_to_the_same_responses(tmp_path: Path) -> None:
    streams = [emit_stream(deltas) for deltas in parse_golden_outputs()]
    assert len(streams) >= 400
    check_streams(streams, tmp_path)


@settings(max_examples=5, deadline=None, suppress_health_check=[*HealthCheck])
@given(many=st.lists(st.tuples(any_deltas(), st.sampled_from(ANY_ENDING)), min_size=10, max_size=10))
@pytest.mark.shows("H7.5")
def test_any_stream_folds_to_the_same_response(tmp_path: Path, many: list[tuple[list[Delta], Any]]) -> None:
    check_streams([emit_stream(deltas, ending) for deltas, ending in many], tmp_path)
