"""The stream helper of the npm package openai, the strictest accumulator there is, fed with the emitter's events for
any deltas.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.core.deltas import Delta, ItemAdded, Progress, ServerItemDone, ServerItemStarted
from antiphon.core.emitter.server_item_kinds import SERVER_ITEM_KINDS
from antiphon.protocol.types.events import Event
from tests.core.emitter.streams import ENDINGS, any_deltas, emit_stream, encode_sse
from tests.core.emitter.tool_item_examples import CLIENT_ITEMS, SERVER_ITEMS, get_start
from tests.core.test_tool_loop_log import emit_tool_loop as whole_loop
from tests.oracles.fold import fold_events
from tests.support.npm import install_packages, run_node

pytestmark = pytest.mark.needs("node")

HERE = Path(__file__).parent / "node"
Accumulate = Callable[[list[list[Event]]], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def accumulate(tmp_path_factory: pytest.TempPathFactory) -> Accumulate:
    folder = tmp_path_factory.mktemp("node")
    shutil.copy(HERE / "accumulate.mjs", folder)
    (folder / "node_modules").symlink_to(install_packages(HERE) / "node_modules")

    def run(streams: list[list[Event]]) -> list[dict[str, Any]]:
        (folder / "streams.json").write_text(json.dumps([encode_sse(events).decode() for events in streams]))
        responses: list[dict[str, Any]] = json.loads(run_node("accumulate.mjs", "streams.json", folder=folder))
        return responses

    return run


def is_same_output(final: dict[str, Any], events: list[Event]) -> bool:
    """Whether the helper accumulated the same items as the emitted events hold."""
    expected = json.loads(msgspec.json.encode(fold_events(events).output))
    return [_select_fields(item) for item in final["output"]] == [_select_fields(item) for item in expected]


def _select_fields(item: dict[str, Any]) -> tuple[Any, ...]:
    """Select the fields to compare, without those that the helper adds to items."""
    return tuple(
        item.get(name)
        for name in ("type", "id", "status", "arguments", "output", "error", "code", "action", "operation")
    )


@pytest.mark.shows("A.57", "E.6")
def test_the_accumulator_accepts_a_tool_loop(accumulate: Accumulate) -> None:
    events = whole_loop()[0]
    (final,) = accumulate([events])
    assert is_same_output(final, events)
    assert final["output_text"] == "Let me see.Blue, and 42."


@pytest.mark.shows("A.57", "E.6", "E.21")
def test_the_accumulator_accepts_every_server_tool_item_with_every_outcome(accumulate: Accumulate) -> None:
    streams = []
    for kind, ends in SERVER_ITEMS.items():
        stages: list[Delta] = [Progress(0, stage) for stage in SERVER_ITEM_KINDS[kind].stages]
        streams += [
            emit_stream([ServerItemStarted(0, get_start(ends[0])), *stages, ServerItemDone(0, end)]) for end in ends
        ]
        streams += [
            emit_stream([ServerItemStarted(0, get_start(ends[0])), *stages], ending)
            for ending in ENDINGS
            if ending.error is None
        ]
    assert all(map(is_same_output, accumulate(streams), streams))


@pytest.mark.shows("A.57", "E.23", "E.24", "E.25")
def test_the_accumulator_accepts_client_tool_calls(accumulate: Accumulate) -> None:
    streams = [emit_stream([ItemAdded(item)]) for item in CLIENT_ITEMS] + [
        emit_stream([ItemAdded(item) for item in CLIENT_ITEMS])
    ]
    assert all(map(is_same_output, accumulate(streams), streams))


@settings(max_examples=5, deadline=None, suppress_health_check=[*HealthCheck])
@given(many=st.lists(st.tuples(any_deltas(), st.sampled_from([ENDINGS[0], ENDINGS[1]])), min_size=8, max_size=8))
@pytest.mark.shows("A.57")
def test_the_accumulator_accepts_any_stream(accumulate: Accumulate, many: list[tuple[list[Delta], Any]]) -> None:
    streams = [emit_stream(deltas, ending) for deltas, ending in many]
    assert all(map(is_same_output, accumulate(streams), streams))
