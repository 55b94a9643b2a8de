"""sse.js and fold.js give the same Responses as the fold of the server, for every kind of stream in this repository."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.config import Config
from antiphon.core.deltas import Delta, ItemAdded, Progress, ServerItemDone, ServerItemStarted
from antiphon.core.emitter.server_item_kinds import SERVER_ITEM_KINDS
from antiphon.core.prompt import Chunk
from antiphon.engines.fake import FakeEngine
from antiphon.protocol.types.events import Event
from antiphon.transport.operating.page import FOLDER
from antiphon.wiring import build_app
from tests.core.emitter.streams import ANY_ENDING, ENDINGS, any_deltas, emit_stream, encode_sse
from tests.core.emitter.tool_item_examples import CLIENT_ITEMS, SERVER_ITEMS, get_start
from tests.core.test_tool_loop_log import emit_tool_loop
from tests.oracles.fold import fold_events
from tests.protocol.decoding.recorded_requests import iter_create_requests
from tests.support.asgi_client import JSON, call
from tests.support.npm import run_node
from tests.support.paths import TESTS

pytestmark = [pytest.mark.anyio, pytest.mark.needs("node")]

# Fields of a recorded request that refer to what the recorded server had.
REFERENCES = ("previous_response_id", "conversation", "generate", "type", "stream_options")
GROWING = ("arguments", "input", "code")


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


@pytest.mark.shows("H7.5")
async def test_recorded_requests_fold_to_the_same_responses(tmp_path: Path) -> None:
    bodies = [body for _, body in iter_create_requests()]
    bodies = [{name: value for name, value in body.items() if name not in REFERENCES} for body in bodies]
    bodies = [{**body, **changes} for body in bodies for changes in ({}, {"reasoning": {"effort": "low"}})]
    streams = await stream_bodies(bodies, FakeEngine())
    assert len(streams) >= len(bodies) // 2
    check_bodies(streams, tmp_path)


@pytest.mark.shows("H7.5")
async def test_golden_streams_of_engines_fold_to_the_same_responses(tmp_path: Path) -> None:
    engine, count = FakeEngine(), 0
    for path in sorted((TESTS / "golden").rglob("chat*.expected.json")):
        for step in json.loads(path.read_bytes()):
            if isinstance(step, dict) and step.get("chunks"):
                chunks = msgspec.convert(step["chunks"], list[Chunk])
                engine.says(*(chunk for chunk in chunks if chunk.finish is None), finish=chunks[-1].finish)
                count += 1
    assert count >= 20
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


@settings(max_examples=5, deadline=None, suppress_health_check=[*HealthCheck])
@given(many=st.lists(st.tuples(any_deltas(), st.sampled_from(ANY_ENDING)), min_size=10, max_size=10))
@pytest.mark.shows("H7.5")
def test_any_stream_folds_to_the_same_response(tmp_path: Path, many: list[tuple[list[Delta], Any]]) -> None:
    check_streams([emit_stream(deltas, ending) for deltas, ending in many], tmp_path)
