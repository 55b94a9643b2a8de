"""Packed logs: packing and unpacking reproduces the event bytes, damaged and foreign logs are rejected, and logs are
small.
"""

from contextlib import suppress
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon.core.deltas import (
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
from antiphon.core.emitter.event_log import RunEnded
from antiphon.core.emitter.fold import ResponseEnding
from antiphon.core.prompt import TokenCounts
from antiphon.core.replay import VERSION, Replay, UnreadableLog, reset_response, unpack
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
    pack_log,
    repack_log,
    round_trip_json,
)
from tests.support.cpu import measure_min_cpu_seconds

END = RunEnded(status="completed", usage=USAGE, at=9)
EVENTS_SHA256 = "879f0f3f88fad9f980ba571b39ce194ad37ead298b83cb16f74b5b559ae68cf1"  # of the events of VERSION
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


@given(
    ending=st.sampled_from(ANY_ENDING), lists=any_delta_lists(), body=st.sampled_from(BODIES), obfuscates=st.booleans()
)
def test_a_stored_response_and_its_packed_log_replay_the_same_bytes(
    ending: ResponseEnding, lists: list[list[Delta]], body: dict[str, object], obfuscates: bool
) -> None:
    emitter = make_recording_emitter(make_response(body), obfuscates)
    events = emit_unfinished(emitter, lists) + emitter.finish(ending, USAGE, 1_763_000_009)
    response = round_trip_json(emitter.response)
    entries = repack_log(emitter)
    replay = Replay(reset_response(response), obfuscates)
    assert encode_sse(replay.open() + replay.feed(entries)) == encode_sse(events)
    assert drop_unpacked_fields(entries) == drop_unpacked_fields(get_log_entries(emitter))


@pytest.mark.parametrize("ending", ANY_ENDING, ids=lambda ending: ending.status)
def test_a_response_that_never_started_can_be_packed(ending: ResponseEnding) -> None:
    emitter = make_recording_emitter(make_response(BODIES[1]))
    events = emitter.emit_created() + emitter.finish(ending, None, 9)
    response = round_trip_json(emitter.response)
    replay = Replay(reset_response(response), include_obfuscation=False)
    assert encode_sse(replay.open() + replay.feed(repack_log(emitter))) == encode_sse(events)


@pytest.mark.parametrize("text", ["é", "e\u0301", "👩‍👩‍👧", "𝄞", "\ufeff\x00", "\u2028", "ﷺ"])
def test_all_characters_survive_packing(text: str) -> None:
    pieces: list[Delta] = [Text(char) for char in text]
    emitter = make_ended_emitter(*pieces, Text(text), ReasoningDelta(text), Refusal(text))
    assert repack_log(emitter) == get_log_entries(emitter)


def test_overlapping_calls_survive_packing() -> None:
    deltas: list[Delta] = [CallStarted(0, "f"), CallStarted(1, "g", "custom", "space"), CallDelta(1, "a")]
    deltas += [CallDelta(0, ""), CallDelta(0, "{"), CallDelta(1, "b"), CallDone(1), CallStarted(1, "h")]
    deltas += [CallDelta(1, "[]"), CallDelta(0, "}"), CallDone(0), Text("x")]
    emitter = make_ended_emitter(*deltas, ending=ANY_ENDING[3])
    assert repack_log(emitter) == get_log_entries(emitter)


def test_a_message_of_many_parts_is_split_correctly() -> None:
    emitter = make_ended_emitter(Text("a"), Refusal("b"), Text("cd"), Text(""), Refusal(""), Text(""))
    (message,) = emitter.response.output
    assert isinstance(message, Message)
    assert len(message.content) == 5
    assert repack_log(emitter) == get_log_entries(emitter)


# ---- unreadable logs


@given(lists=any_delta_lists(), position=st.integers(0, 9_999), change=st.integers(1, 255))
def test_a_damaged_packed_log_is_never_read_as_another_log(
    lists: list[list[Delta]], position: int, change: int
) -> None:
    """Bits that do not matter may change, for example the padding of the last byte."""
    emitter = make_recording_emitter(make_response())
    emit_unfinished(emitter, lists)
    emitter.finish(ANY_ENDING[2], USAGE, 9)
    packed, entries = bytearray(pack_log(emitter)), repack_log(emitter)
    packed[position % len(packed)] ^= change
    with suppress(UnreadableLog):
        assert unpack(bytes(packed), encode(emitter.response)) == entries


def test_a_truncated_or_extended_packed_log_is_rejected() -> None:
    emitter = make_ended_emitter(ReasoningDelta("hm"), Text("a"))
    packed, body = pack_log(emitter), encode(emitter.response)
    for length in range(len(packed)):
        with pytest.raises(UnreadableLog):
            unpack(packed[:length], body)
    with pytest.raises(UnreadableLog):
        unpack(packed + b"\x00", body)


@pytest.mark.parametrize("version", [1, VERSION + 1])
def test_a_packed_log_of_another_version_is_rejected(version: int) -> None:
    emitter = make_ended_emitter(Text("a"))
    with pytest.raises(UnreadableLog, match="does not have version 3"):
        unpack(bytes((version,)) + pack_log(emitter)[1:], encode(emitter.response))


def test_a_packed_log_of_another_response_is_rejected() -> None:
    emitter, other = make_ended_emitter(Text("a")), make_ended_emitter(Text("a"))
    with pytest.raises(UnreadableLog, match="another response"):
        unpack(pack_log(other), encode(emitter.response))


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
    assert (VERSION, sha256(encode_sse(checked)).hexdigest()) == (3, EVENTS_SHA256)


# ---- size and speed


@pytest.mark.parametrize("tokens", [8, 50, 200, 1000, 2000])
def test_all_stored_data_take_at_most_twice_the_response_json(tokens: int) -> None:
    emitter = _emit_tokens(tokens)
    json = len(encode(emitter.response))
    assert len(REQUEST) + json + len(pack_log(emitter)) <= 2 * json


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
    return measure_min_cpu_seconds(lambda: repack_log(emitter))
