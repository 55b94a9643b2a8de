"""Packed logs: packing and unpacking reproduces the event bytes, damaged and foreign logs are rejected, and logs are
small.
"""

from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon.core.deltas import (
    Break,
    CallDelta,
    CallDone,
    CallStarted,
    Citation,
    Delta,
    ReasoningDelta,
    Refusal,
    Summary,
    Text,
)
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.emitter.event_log import LogEntry, RunEnded, RunStarted
from antiphon.core.emitter.fold import ResponseEnding
from antiphon.core.prompt import TokenCounts
from antiphon.core.replay.packed_log import VERSION, UnreadableLog, pack, unpack
from antiphon.core.replay.replay import Replay, reset_response
from antiphon.core.usage import usage_from_counts
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.events import ResponseEvent
from antiphon.protocol.types.items import Message
from antiphon.protocol.types.response import Response
from tests.core.emitter.streams import (
    ANY_ENDING,
    BODIES,
    CITATIONS,
    LOGPROB,
    USAGE,
    any_delta_lists,
    drop_unpacked_fields,
    emit_unfinished,
    encode_sse,
    get_log_entries,
    make_recording_emitter,
    make_response,
    round_trip_json,
)
from tests.support.cpu import measure_min_cpu_seconds

END = RunEnded(status="completed", usage=USAGE, at=9)
EVENTS_SHA256 = "879f0f3f88fad9f980ba571b39ce194ad37ead298b83cb16f74b5b559ae68cf1"  # of the events of VERSION
OLD_PACKED_LOG = bytes.fromhex(
    "01bed9d7ad939a94a5626567616e90009094a172920101009094a16290019094a174920302009094a16390009094a16390019094a1649102"
    "019094a1649102009094a16590009094a1649101019009c0"
)
# Stored form of a small request, in addition to its Response.
REQUEST = (
    b'{"sent":["input","model","stream"],"asked":{"input":[{"type":"message","id":"msg_019a8b7c6d5e7f00800000000000000'
    b'0000000","role":"user","content":[{"type":"input_text","text":"Why is the sky blue?"}]}],"stream":true}}'
)


def make_ended_emitter(*deltas: Delta, ending: ResponseEnding = ANY_ENDING[0]) -> Emitter:
    emitter = make_recording_emitter(make_response())
    emit_unfinished(emitter, [[*deltas]])
    emitter.finish(ending, USAGE, 9)
    return emitter


def pack_log(emitter: Emitter) -> bytes:
    return pack([get_log_entries(emitter)], emitter.response)


@settings(max_examples=200)
@given(
    ending=st.sampled_from(ANY_ENDING), lists=any_delta_lists(), body=st.sampled_from(BODIES), obfuscates=st.booleans()
)
def test_a_stored_response_and_its_packed_log_replay_the_same_bytes(
    ending: ResponseEnding, lists: list[list[Delta]], body: dict[str, object], obfuscates: bool
) -> None:
    emitter = make_recording_emitter(make_response(body), obfuscates)
    events = emit_unfinished(emitter, lists) + emitter.finish(ending, USAGE, 1_763_000_009)
    response = round_trip_json(emitter.response)
    entries = unpack(pack_log(emitter), response)
    replay = Replay(reset_response(response), obfuscates)
    assert encode_sse(replay.open() + replay.feed(entries)) == encode_sse(events)
    assert drop_unpacked_fields(entries) == drop_unpacked_fields(get_log_entries(emitter))


@pytest.mark.parametrize("ending", ANY_ENDING, ids=lambda ending: ending.status)
def test_a_response_that_never_started_can_be_packed(ending: ResponseEnding) -> None:
    emitter = make_recording_emitter(make_response(BODIES[1]))
    events = emitter.emit_created() + emitter.finish(ending, None, 9)
    response = round_trip_json(emitter.response)
    replay = Replay(reset_response(response), include_obfuscation=False)
    assert encode_sse(replay.open() + replay.feed(unpack(pack_log(emitter), response))) == encode_sse(events)


@pytest.mark.parametrize("text", ["é", "e\u0301", "👩‍👩‍👧", "𝄞", "\ufeff\x00", "\u2028", "ﷺ"])
def test_lengths_count_code_points(text: str) -> None:
    pieces: list[Delta] = [Text(char) for char in text]
    emitter = make_ended_emitter(*pieces, Text(text), ReasoningDelta(text), Refusal(text))
    assert unpack(pack_log(emitter), round_trip_json(emitter.response)) == get_log_entries(emitter)


def test_overlapping_calls_survive_packing() -> None:
    deltas: list[Delta] = [CallStarted(0, "f"), CallStarted(1, "g", "custom", "space"), CallDelta(1, "a")]
    deltas += [CallDelta(0, ""), CallDelta(0, "{"), CallDelta(1, "b"), CallDone(1), CallStarted(1, "h")]
    deltas += [CallDelta(1, "[]"), CallDelta(0, "}"), CallDone(0), Text("x")]
    emitter = make_ended_emitter(*deltas, ending=ANY_ENDING[3])
    assert unpack(pack_log(emitter), round_trip_json(emitter.response)) == get_log_entries(emitter)


def test_a_message_of_many_parts_is_split_correctly() -> None:
    emitter = make_ended_emitter(Text("a"), Refusal("b"), Text("cd"), Text(""), Refusal(""), Text(""))
    (message,) = emitter.response.output
    assert isinstance(message, Message)
    assert len(message.content) == 5
    assert unpack(pack_log(emitter), round_trip_json(emitter.response)) == get_log_entries(emitter)


# ---- unreadable logs


@given(lists=any_delta_lists(), data=st.data())
def test_a_damaged_packed_log_is_rejected(lists: list[list[Delta]], data: st.DataObject) -> None:
    emitter = make_recording_emitter(make_response())
    emit_unfinished(emitter, lists)
    emitter.finish(ANY_ENDING[2], USAGE, 9)
    packed = bytearray(pack_log(emitter))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(UnreadableLog):
        unpack(bytes(packed), emitter.response)


def test_a_truncated_or_extended_packed_log_is_rejected() -> None:
    emitter = make_ended_emitter(ReasoningDelta("hm"), Text("a"))
    packed = pack_log(emitter)
    for length in range(len(packed)):
        with pytest.raises(UnreadableLog):
            unpack(packed[:length], emitter.response)
    with pytest.raises(UnreadableLog):
        unpack(packed + b"\x00", emitter.response)


def test_a_packed_log_of_another_version_is_rejected() -> None:
    emitter = make_ended_emitter(Text("a"))
    with pytest.raises(UnreadableLog, match="does not have version 1"):
        unpack(bytes((VERSION + 1,)) + pack_log(emitter)[1:], emitter.response)


def test_a_packed_log_from_before_server_tools_is_still_readable() -> None:
    emitter = make_recording_emitter(Response(id="resp_019a8b7c6d5e7f008000000000000000", created_at=1, model="m"))
    deltas: list[Delta] = [ReasoningDelta("h"), ReasoningDelta("m"), Break("commentary"), Text("Hel"), Text("lo")]
    deltas += [CallStarted(0, "f"), CallStarted(1, "g", "custom", "space"), CallDelta(1, "ab"), CallDelta(0, "{}")]
    emit_unfinished(emitter, [[*deltas, CallDone(0), CallDelta(1, "c")]])
    emitter.finish(ANY_ENDING[1], None, 9)
    assert unpack(OLD_PACKED_LOG, emitter.response) == get_log_entries(emitter)


def test_a_packed_log_of_another_response_is_rejected() -> None:
    emitter, other = make_ended_emitter(Text("a")), make_ended_emitter(Text("a"))
    with pytest.raises(UnreadableLog):
        unpack(pack_log(other), emitter.response)


@pytest.mark.parametrize(
    "entries",
    [
        [Text("abc")],
        [Text("abcde")],
        [Text("abcd", (LOGPROB,))],
        [Text("abcd"), Citation(CITATIONS[0])],
        [Text("abcd"), ReasoningDelta("x")],
        [Text("abcd"), Summary("x")],
        [Text("abcd"), Refusal("x")],
        [Text("abcd"), CallStarted(0, "f"), CallDelta(1, "{}")],
        [Text("abcd"), CallStarted(0, "f"), CallDelta(0, "[1]")],
        [Text("abcd"), CallStarted(0, "f"), CallStarted(1, "f"), CallDelta(0, "[]")],
        [Text("abcd"), CallDelta(1, "[]")],
    ],
    ids=repr,
)
def test_a_packed_log_that_does_not_match_the_response_is_rejected(entries: list[LogEntry]) -> None:
    emitter = make_ended_emitter(Text("abcd"), CallStarted(0, "f"), CallDelta(0, "{}"))
    fits: list[LogEntry] = [RunStarted(), Text("abcd"), CallStarted(0, "f"), CallDelta(0, "{}"), END]
    assert unpack(pack([fits], emitter.response), emitter.response) == fits
    with pytest.raises(UnreadableLog, match="does not match"):
        unpack(pack([[RunStarted(), *entries, END]], emitter.response), emitter.response)


def test_a_packed_log_of_a_failure_is_rejected_for_a_completed_response() -> None:
    emitter, failed = make_ended_emitter(Text("a")), make_ended_emitter(Text("a"), ending=ANY_ENDING[2])
    with pytest.raises(UnreadableLog, match="one of them failed"):
        unpack(pack([get_log_entries(failed)], emitter.response), emitter.response)


# ---- stability within a version


def test_events_do_not_change_within_a_version() -> None:
    """The current emitter replays stored responses of any age.

    A change of `EVENTS_SHA256` needs a new `VERSION`, and the code that replays logs of the older versions must stay.
    """
    response = Response(id="resp_019a8b7c6d5e7f008000000000000000", created_at=1, model="m", background=True)
    emitter = make_recording_emitter(replace(response, status="queued"), include_obfuscation=True)
    deltas: list[Delta] = [
        ReasoningDelta("h"),
        ReasoningDelta("m"),
        Summary("a", 0),
        Summary("b", 1),
        Text("Hel", (LOGPROB,)),
    ]
    deltas += [Text("lo"), Citation(CITATIONS[0]), Refusal("no"), CallStarted(0, "f"), CallStarted(1, "g", "custom")]
    deltas += [CallDelta(1, "x"), CallDelta(0, "{}"), CallDone(0), CallDone(1), Text("!")]
    deltas += [CallStarted(0, "h", "function", "space"), CallDelta(0, "[")]
    events = emit_unfinished(emitter, [deltas]) + emitter.finish(
        ANY_ENDING[5], usage_from_counts([TokenCounts(input_tokens=3)]), 9
    )
    # response events carry the stored response
    checked = [event for event in events if not isinstance(event, ResponseEvent)]
    assert (VERSION, sha256(encode_sse(checked)).hexdigest()) == (1, EVENTS_SHA256)


# ---- size and speed


@pytest.mark.parametrize("tokens", [50, 200, 1000, 2000])
def test_all_stored_data_take_at_most_half_more_than_the_response_json(tokens: int) -> None:
    emitter = _emit_tokens(tokens)
    json = len(encode(emitter.response))
    assert len(REQUEST) + json + len(pack_log(emitter)) <= 1.5 * json


def test_packing_takes_linear_time() -> None:
    short, long = _emit_tokens(10_000), _emit_tokens(100_000)
    assert _measure_seconds(long) < 30 * _measure_seconds(short)


def _emit_tokens(tokens: int) -> Emitter:
    emitter = make_recording_emitter(make_response())
    emit_unfinished(emitter, [[Text(f"{number % 999:03d} ")] for number in range(tokens)])
    emitter.finish(
        ANY_ENDING[0], usage_from_counts([TokenCounts(input_tokens=30, output_tokens=tokens)]), 1_763_000_009
    )
    return emitter


def _measure_seconds(emitter: Emitter) -> float:
    entries = get_log_entries(emitter)

    def pack_and_unpack() -> None:
        assert len(unpack(pack([entries], emitter.response), emitter.response)) == len(entries)

    return measure_min_cpu_seconds(pack_and_unpack)
