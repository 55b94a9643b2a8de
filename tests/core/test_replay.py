"""Replaying log entries reproduces the event bytes, also when another server resumes the run of a dead one."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.deltas import (
    CallDelta,
    CallDone,
    CallStarted,
    Delta,
    ItemAdded,
    ReasoningDelta,
    ServerItemDone,
    ServerItemStarted,
    Text,
)
from antiphon.core.emitter.event_log import LogEntry, LoggedError, RunEnded, RunStarted
from antiphon.core.emitter.fold import ResponseEnding
from antiphon.core.replay import Replay, decode_entries, encode_entries, reset_response
from antiphon.errors import ServerRestarted
from antiphon.ids import ItemIds
from antiphon.protocol.types.items import FunctionCall, McpListedTool, McpListTools, Message
from tests.core.emitter.streams import (
    ANY_ENDING,
    BODIES,
    LOGPROB,
    USAGE,
    any_delta_lists,
    drop_unpacked_fields,
    emit_unfinished,
    encode_sse,
    event_types,
    get_log_entries,
    make_recording_emitter,
    make_response,
    repack_log,
    round_trip_json,
)
from tests.core.emitter.tool_item_examples import ADDED_ITEMS
from tests.oracles.fold import fold_events

DIED = ResponseEnding(status="failed", error=ServerRestarted("The server that worked on this response died."))


@given(
    ending=st.sampled_from(ANY_ENDING), lists=any_delta_lists(), body=st.sampled_from(BODIES), obfuscates=st.booleans()
)
def test_a_log_replays_the_same_bytes(
    ending: ResponseEnding, lists: list[list[Delta]], body: dict[str, object], obfuscates: bool
) -> None:
    emitter = make_recording_emitter(make_response(body), obfuscates)
    events = emit_unfinished(emitter, lists) + emitter.finish(ending, USAGE, 1_763_000_009)
    replay = Replay(reset_response(round_trip_json(emitter.response)), obfuscates)
    again = replay.open() + replay.feed(decode_entries(encode_entries(get_log_entries(emitter))))
    assert encode_sse(again) == encode_sse(events)
    assert replay.emitter.response == round_trip_json(emitter.response)


@given(lists=any_delta_lists(), cuts=st.lists(st.integers(0, 30)), obfuscates=st.booleans())
def test_grouping_of_entries_does_not_change_the_events(
    lists: list[list[Delta]], cuts: list[int], obfuscates: bool
) -> None:
    emitter = make_recording_emitter(make_response(), obfuscates)
    events = emit_unfinished(emitter, lists) + emitter.finish(ANY_ENDING[0], None, 9)
    entries = get_log_entries(emitter)
    replay = Replay(reset_response(emitter.response), obfuscates)
    again = replay.open()
    edges = [0, *sorted(min(cut, len(entries)) for cut in cuts), len(entries)]
    for start, end in pairwise(edges):
        again += replay.feed(entries[start:end])
    assert encode_sse(again) == encode_sse(events)


@given(lists=any_delta_lists(), length=st.integers(0, 30), body=st.sampled_from(BODIES), obfuscates=st.booleans())
def test_a_run_resumed_from_its_log_emits_the_same_events(
    lists: list[list[Delta]], length: int, body: dict[str, object], obfuscates: bool
) -> None:
    dead = make_recording_emitter(make_response(body), obfuscates)
    emit_unfinished(dead, lists)
    logged = get_log_entries(dead)[:length]
    replay = Replay(reset_response(round_trip_json(dead.response)), obfuscates)
    events = replay.open() + replay.feed(decode_entries(encode_entries(logged)))
    successor = replay.emitter
    events += successor.finish(DIED, None, 9)

    alive = make_recording_emitter(reset_response(dead.response), obfuscates)
    expected = alive.emit_created() + (alive.emit_in_progress() if logged else [])
    expected += alive.feed([entry for entry in logged if not isinstance(entry, RunStarted)])  # type: ignore[misc]  # deltas
    expected += alive.finish(DIED, None, 9)
    assert encode_sse(events) == encode_sse(expected)
    assert fold_events(events) == successor.response
    assert drop_unpacked_fields(repack_log(successor)) == drop_unpacked_fields(get_log_entries(successor))


def test_open_items_of_a_resumed_run_are_closed_as_incomplete() -> None:
    replay = Replay(make_response(), include_obfuscation=False)
    events = replay.open() + replay.feed(
        [RunStarted(), ReasoningDelta("hm"), CallStarted(0, "f"), CallDelta(0, "{"), CallDone(0)]
    )
    events += replay.feed([Text("Hel"), Text("lo")])
    events += replay.emitter.finish(DIED, None, 9)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert event_types(events)[-2:] == ["error", "response.failed"]
    _, call, message = replay.emitter.response.output
    assert isinstance(call, FunctionCall)
    assert isinstance(message, Message)
    assert (call.status, message.status) == ("completed", "incomplete")
    assert message.id == "msg_" + ItemIds(replay.emitter.response.id)("rs")[3:-1] + "3"


@given(lists=any_delta_lists(), body=st.sampled_from(BODIES))
def test_resetting_a_response_restores_its_initial_state(lists: list[list[Delta]], body: dict[str, object]) -> None:
    opening = make_response(body)
    emitter = make_recording_emitter(opening)
    emit_unfinished(emitter, lists)
    assert reset_response(emitter.response) == opening
    emitter.finish(ANY_ENDING[5], USAGE, 9)
    assert reset_response(round_trip_json(emitter.response)) == round_trip_json(opening)


def test_entries_hold_integers_of_any_size() -> None:
    tool = McpListedTool(name="t", input_schema={"type": "object", "maxProperties": 10**30, "x": -(2**63) - 1})
    listed = McpListTools(server_label="s", tools=[tool])
    entries: list[LogEntry] = [
        RunStarted(),
        ServerItemStarted(0, listed),
        ServerItemDone(0, listed, "é"),
        Text("a", (LOGPROB,)),
        ItemAdded(ADDED_ITEMS[2]),
    ]
    entries.append(RunEnded(status="failed", fault=LoggedError(type="t", code=None, message="m"), usage=USAGE, at=9))
    assert decode_entries(encode_entries(entries)) == entries


def test_encoded_entries_are_small() -> None:
    assert len(encode_entries([Text("abcd")] * 100)) < 1000
