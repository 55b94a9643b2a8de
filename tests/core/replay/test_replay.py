from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, Opened, Put, Ran, Text, Thought
from antiphon.core.emitter.event_log import Began, Ended, Entry, Fault
from antiphon.core.emitter.fold import Ending, fold
from antiphon.core.replay.packed_log import pack, unpack
from antiphon.core.replay.replay import Replay, decode_entries, encode_entries, reopened
from antiphon.errors import ServerRestarted
from antiphon.ids import ItemIds
from antiphon.protocol.types.builtin_items import McpListedTool
from antiphon.protocol.types.items import FunctionCall, McpListTools, Message
from tests.core.emitter.streams import (
    ANY_ENDING,
    BODIES,
    LOGPROB,
    USAGE,
    any_lists,
    as_stored,
    entries_of,
    opened,
    recording,
    sent,
    taped_only,
    told,
    types,
)
from tests.core.emitter.tool_item_examples import PUT

DIED = Ending(status="failed", error=ServerRestarted("The server that worked on this response died."))


@settings(max_examples=200)
@given(ending=st.sampled_from(ANY_ENDING), lists=any_lists(), body=st.sampled_from(BODIES), obfuscates=st.booleans())
def test_a_log_gives_the_same_bytes_again(
    ending: Ending, lists: list[list[Delta]], body: dict[str, object], obfuscates: bool
) -> None:
    emitter = recording(opened(body), obfuscates)
    events = told(emitter, lists) + emitter.finish(ending, USAGE, 1_763_000_009)
    replay = Replay(reopened(as_stored(emitter.response)), obfuscates)
    again = replay.open() + replay.feed(decode_entries(encode_entries(entries_of(emitter))))
    assert sent(again) == sent(events)
    assert replay.emitter.response == emitter.response


@given(lists=any_lists(), cuts=st.lists(st.integers(0, 30)), obfuscates=st.booleans())
def test_how_entries_are_grouped_changes_nothing(lists: list[list[Delta]], cuts: list[int], obfuscates: bool) -> None:
    emitter = recording(opened(), obfuscates)
    events = told(emitter, lists) + emitter.finish(ANY_ENDING[0], None, 9)
    entries = entries_of(emitter)
    replay = Replay(reopened(emitter.response), obfuscates)
    again = replay.open()
    edges = [0, *sorted(min(cut, len(entries)) for cut in cuts), len(entries)]
    for start, end in pairwise(edges):
        again += replay.feed(entries[start:end])
    assert sent(again) == sent(events)


@given(lists=any_lists(), length=st.integers(0, 30), body=st.sampled_from(BODIES), obfuscates=st.booleans())
def test_what_a_dead_owner_left_goes_on_as_if_nothing_had_happened(
    lists: list[list[Delta]], length: int, body: dict[str, object], obfuscates: bool
) -> None:
    dead = recording(opened(body), obfuscates)
    told(dead, lists)
    left = entries_of(dead)[:length]
    replay = Replay(reopened(as_stored(dead.response)), obfuscates)
    events = replay.open() + replay.feed(decode_entries(encode_entries(left)))
    heir = replay.emitter
    events += heir.finish(DIED, None, 9)

    alive = recording(reopened(dead.response), obfuscates)
    expected = alive.created() + (alive.in_progress() if left else [])
    expected += alive.feed([entry for entry in left if not isinstance(entry, Began)])  # type: ignore[misc]  # deltas
    expected += alive.finish(DIED, None, 9)
    assert sent(events) == sent(expected)
    assert fold(events) == heir.response
    taped = unpack(pack([entries_of(heir)], heir.response), as_stored(heir.response))
    assert taped_only(taped) == taped_only(entries_of(heir))


def test_what_a_dead_owner_left_open_is_closed_as_incomplete_with_the_numbers_that_follow() -> None:
    replay = Replay(opened(), obfuscates=False)
    events = replay.open() + replay.feed([Began(), Thought("hm"), CallStarted(0, "f"), CallDelta(0, "{"), CallDone(0)])
    events += replay.feed([Text("Hel"), Text("lo")])
    events += replay.emitter.finish(DIED, None, 9)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert types(events)[-2:] == ["error", "response.failed"]
    _, call, message = replay.emitter.response.output
    assert isinstance(call, FunctionCall)
    assert isinstance(message, Message)
    assert (call.status, message.status) == ("completed", "incomplete")
    assert message.id == "msg_" + ItemIds(replay.emitter.response.id)("rs")[3:-1] + "3"


@given(lists=any_lists(), body=st.sampled_from(BODIES))
def test_a_response_is_opened_again_as_it_was(lists: list[list[Delta]], body: dict[str, object]) -> None:
    opening = opened(body)
    emitter = recording(opening)
    told(emitter, lists)
    assert reopened(emitter.response) == opening
    emitter.finish(ANY_ENDING[5], USAGE, 9)
    assert reopened(as_stored(emitter.response)) == opening


def test_a_tool_may_speak_of_numbers_of_any_size() -> None:
    tool = McpListedTool(name="t", input_schema={"type": "object", "maxProperties": 10**30, "x": -(2**63) - 1})
    listed = McpListTools(server_label="s", tools=[tool])
    entries: list[Entry] = [Began(), Opened(0, listed), Ran(0, listed, "é"), Text("a", (LOGPROB,)), Put(PUT[2])]
    entries.append(Ended(status="failed", fault=Fault(type="t", code=None, message="m"), usage=USAGE, at=9))
    assert decode_entries(encode_entries(entries)) == entries


def test_entries_are_small() -> None:
    assert len(encode_entries([Text("abcd")] * 100)) < 1000
