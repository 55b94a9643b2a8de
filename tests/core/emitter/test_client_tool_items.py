"""Calls of tools that the client runs and that models do not know: which events tell of them, also in a replay."""

import json
from typing import Any

import msgspec
import pytest

from antiphon.core.deltas import Put
from antiphon.core.emitter.tool_items import is_clients
from antiphon.core.replay.packed_log import pack, unpack
from antiphon.core.replay.replay import Replay
from antiphon.protocol.types.builtin_items import ShellAction
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.items import ShellCall
from tests.core.emitter.streams import (
    ENDINGS,
    USAGE,
    as_stored,
    emitted,
    entries_of,
    opened,
    recording,
    sent,
    told,
    types,
)
from tests.core.emitter.tool_item_examples import CLIENTS
from tests.oracles.responses import accumulate, check_event


def _decoded(events: list[Event]) -> list[dict[str, Any]]:
    decoded = [json.loads(msgspec.json.encode(event)) for event in events]
    for event in decoded:
        check_event(event)
    return decoded


@pytest.mark.parametrize("item", CLIENTS, ids=lambda item: type(item).__name__)
@pytest.mark.shows("E.23", "E.24", "E.25")
def test_a_call_is_told_as_the_openai_package_knows_it(item: Any) -> None:
    events = _decoded(emitted([Put(item)]))
    added, *_, done = [event for event in events if event["type"].startswith("response.output_item")]
    assert added["item"]["status"] == "in_progress"
    assert done["item"]["status"] == item.status
    names = [(event["item"]["id"], event["item"]["call_id"]) for event in (added, done)]
    assert names[0] == names[1]
    assert all(names[0])
    accumulate(events)


@pytest.mark.shows("E.24")
def test_each_command_of_a_shell_is_told_by_itself() -> None:
    item = ShellCall(call_id="", status="completed", action=ShellAction(commands=["ls", "pwd"]))
    events = emitted([Put(item)])
    steps = [event for event in events if event.type.startswith("response.shell_call_command")]
    assert types(steps) == [f"response.shell_call_command.{step}" for step in ("added", "delta", "done")] * 2
    assert [event.command_index for event in steps] == [0, 0, 0, 1, 1, 1]  # type: ignore[attr-defined]  # a command's
    added = next(event for event in events if event.type == "response.output_item.added")
    assert added.item.action.commands == []  # type: ignore[attr-defined]  # a shell's
    assert [event.delta for event in steps[1::3]] == ["ls", "pwd"]  # type: ignore[attr-defined]  # as above


@pytest.mark.parametrize("obfuscates", [False, True])
@pytest.mark.shows("E.23", "E.24", "E.25")
def test_a_tape_tells_the_same_again_byte_for_byte(obfuscates: bool) -> None:
    response = opened()
    emitter = recording(response, obfuscates)
    events = told(emitter, [[Put(item)] for item in CLIENTS]) + emitter.finish(ENDINGS[0], USAGE, 2)
    final = as_stored(emitter.response)
    entries = unpack(pack([entries_of(emitter)], final), final)
    replay = Replay(response, obfuscates)
    assert sent([*replay.open(), *replay.feed(entries)]) == sent(events)
    assert all(map(is_clients, final.output))
