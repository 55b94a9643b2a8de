"""Events of tool calls that the client executes (shell, local_shell, apply_patch, tool_search), live and in a
replay.
"""

import json
from typing import Any

import msgspec
import pytest

from antiphon.core.deltas import ClientItem, ItemAdded
from antiphon.core.replay import Replay
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.items import ShellAction, ShellCall
from tests.core.emitter.streams import (
    ENDINGS,
    USAGE,
    emit_stream,
    emit_unfinished,
    encode_sse,
    event_types,
    make_recording_emitter,
    make_response,
    repack_log,
    round_trip_json,
)
from tests.core.emitter.tool_item_examples import CLIENT_ITEMS
from tests.oracles.responses import accumulate, check_event


def _to_checked_json(events: list[Event]) -> list[dict[str, Any]]:
    decoded = [json.loads(msgspec.json.encode(event)) for event in events]
    for event in decoded:
        check_event(event)
    return decoded


@pytest.mark.parametrize("item", CLIENT_ITEMS, ids=lambda item: type(item).__name__)
@pytest.mark.shows("E.23", "E.24", "E.25")
def test_a_client_tool_call_is_emitted_as_the_openai_package_expects(item: Any) -> None:
    events = _to_checked_json(emit_stream([ItemAdded(item)]))
    added, *_, done = [event for event in events if event["type"].startswith("response.output_item")]
    assert added["item"]["status"] == "in_progress"
    assert done["item"]["status"] == item.status
    names = [(event["item"]["id"], event["item"]["call_id"]) for event in (added, done)]
    assert names[0] == names[1]
    assert all(names[0])
    accumulate(events)


@pytest.mark.shows("E.24")
def test_each_shell_command_has_its_own_events() -> None:
    item = ShellCall(call_id="", status="completed", action=ShellAction(commands=["ls", "pwd"]))
    events = emit_stream([ItemAdded(item)])
    steps = [event for event in events if event.type.startswith("response.shell_call_command")]
    assert event_types(steps) == [f"response.shell_call_command.{step}" for step in ("added", "delta", "done")] * 2
    assert [event.command_index for event in steps] == [0, 0, 0, 1, 1, 1]  # type: ignore[attr-defined]  # a command event
    added = next(event for event in events if event.type == "response.output_item.added")
    assert added.item.action.commands == []  # type: ignore[attr-defined]  # a ShellCall
    assert [event.delta for event in steps[1::3]] == ["ls", "pwd"]  # type: ignore[attr-defined]  # as above


@pytest.mark.parametrize("obfuscates", [False, True])
@pytest.mark.shows("E.23", "E.24", "E.25")
def test_a_packed_log_replays_client_tool_calls_byte_for_byte(obfuscates: bool) -> None:
    response = make_response()
    emitter = make_recording_emitter(response, obfuscates)
    events = emit_unfinished(emitter, [[ItemAdded(item)] for item in CLIENT_ITEMS]) + emitter.finish(
        ENDINGS[0], USAGE, 2
    )
    final = round_trip_json(emitter.response)
    replay = Replay(response, obfuscates)
    assert encode_sse([*replay.open(), *replay.feed(repack_log(emitter))]) == encode_sse(events)
    assert all(isinstance(item, ClientItem) for item in final.output)
