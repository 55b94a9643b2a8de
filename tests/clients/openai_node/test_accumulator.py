"""The stream helper of the npm package openai, the strictest there is, over what the emitter makes of any deltas."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.core.deltas import Delta, Opened, Put, Ran, Stage
from antiphon.core.emitter.fold import fold
from antiphon.core.emitter.tool_items import KINDS
from antiphon.protocol.types.events import Event
from tests.core.emitter.streams import ENDINGS, any_deltas, emitted, sent
from tests.core.emitter.tool_item_examples import CLIENTS, ENDS
from tests.core.replay.test_tool_loop_log import emitted as whole_loop
from tests.support.npm import installed, node

pytestmark = pytest.mark.needs("node")

HERE = Path(__file__).parent / "node"
Accumulate = Callable[[list[list[Event]]], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def accumulate(tmp_path_factory: pytest.TempPathFactory) -> Accumulate:
    folder = tmp_path_factory.mktemp("node")
    shutil.copy(HERE / "accumulate.mjs", folder)
    (folder / "node_modules").symlink_to(installed(HERE) / "node_modules")

    def run(streams: list[list[Event]]) -> list[dict[str, Any]]:
        (folder / "streams.json").write_text(json.dumps([sent(events).decode() for events in streams]))
        made: list[dict[str, Any]] = json.loads(node("accumulate.mjs", "streams.json", folder=folder))
        return made

    return run


def agrees(final: dict[str, Any], events: list[Event]) -> bool:
    """Did it arrive at the items that we say there are?"""
    ours = json.loads(msgspec.json.encode(fold(events).output))
    return [_known(item) for item in final["output"]] == [_known(item) for item in ours]


def _known(item: dict[str, Any]) -> tuple[Any, ...]:
    """What the helper adds to items of its own is left out."""
    return tuple(
        item.get(name)
        for name in ("type", "id", "status", "arguments", "output", "error", "code", "action", "operation")
    )


@pytest.mark.shows("A.57", "E.6")
def test_it_takes_a_whole_loop(accumulate: Accumulate) -> None:
    events = whole_loop()[0]
    (final,) = accumulate([events])
    assert agrees(final, events)
    assert final["output_text"] == "Let me see.Blue, and 42."


@pytest.mark.shows("A.57", "E.6", "E.21")
def test_it_takes_every_kind_of_item_however_it_ends(accumulate: Accumulate) -> None:
    streams = []
    for kind, ends in ENDS.items():
        stages: list[Delta] = [Stage(0, word) for word in KINDS[kind].stages]
        streams += [emitted([Opened(0, ends[0]), *stages, Ran(0, end)]) for end in ends]
        streams += [emitted([Opened(0, ends[0]), *stages], ending) for ending in ENDINGS if ending.error is None]
    assert all(map(agrees, accumulate(streams), streams))


@pytest.mark.shows("A.57", "E.23", "E.24", "E.25")
def test_it_takes_calls_of_the_clients_own_tools(accumulate: Accumulate) -> None:
    streams = [emitted([Put(item)]) for item in CLIENTS] + [emitted([Put(item) for item in CLIENTS])]
    assert all(map(agrees, accumulate(streams), streams))


@settings(max_examples=5, deadline=None, suppress_health_check=[*HealthCheck])
@given(many=st.lists(st.tuples(any_deltas(), st.sampled_from([ENDINGS[0], ENDINGS[1]])), min_size=8, max_size=8))
@pytest.mark.shows("A.57")
def test_it_takes_any_stream(accumulate: Accumulate, many: list[tuple[list[Delta], Any]]) -> None:
    streams = [emitted(deltas, ending) for deltas, ending in many]
    assert all(map(agrees, accumulate(streams), streams))
