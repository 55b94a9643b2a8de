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
    Refusal,
    Summary,
    Text,
    Thought,
)
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.emitter.event_log import Began, Ended, Entry
from antiphon.core.emitter.fold import Ending
from antiphon.core.prompt import Counts
from antiphon.core.replay.packed_log import VERSION, UnreadableTape, pack, unpack
from antiphon.core.replay.replay import Replay, reopened
from antiphon.core.usage import usage
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
    any_lists,
    as_stored,
    entries_of,
    opened,
    recording,
    sent,
    taped_only,
    told,
)
from tests.support.cpu import least_spent_on

END = Ended(status="completed", usage=USAGE, at=9)
SUM = "879f0f3f88fad9f980ba571b39ce194ad37ead298b83cb16f74b5b559ae68cf1"  # of the events of VERSION
OLD_TAPE = bytes.fromhex(
    "01bed9d7ad939a94a5626567616e90009094a172920101009094a16290019094a174920302009094a16390009094a16390019094a1649102"
    "019094a1649102009094a16590009094a1649101019009c0"
)
# What a small request is kept as, beside its Response.
REQUEST = (
    b'{"sent":["input","model","stream"],"asked":{"input":[{"type":"message","id":"msg_019a8b7c6d5e7f00800000000000000'
    b'0000000","role":"user","content":[{"type":"input_text","text":"Why is the sky blue?"}]}],"stream":true}}'
)


def ended(*deltas: Delta, ending: Ending = ANY_ENDING[0]) -> Emitter:
    emitter = recording(opened())
    told(emitter, [[*deltas]])
    emitter.finish(ending, USAGE, 9)
    return emitter


def taped(emitter: Emitter) -> bytes:
    return pack([entries_of(emitter)], emitter.response)


@settings(max_examples=200)
@given(ending=st.sampled_from(ANY_ENDING), lists=any_lists(), body=st.sampled_from(BODIES), obfuscates=st.booleans())
def test_a_stored_response_and_its_tape_give_the_same_bytes_again(
    ending: Ending, lists: list[list[Delta]], body: dict[str, object], obfuscates: bool
) -> None:
    emitter = recording(opened(body), obfuscates)
    events = told(emitter, lists) + emitter.finish(ending, USAGE, 1_763_000_009)
    response = as_stored(emitter.response)
    entries = unpack(taped(emitter), response)
    replay = Replay(reopened(response), obfuscates)
    assert sent(replay.open() + replay.feed(entries)) == sent(events)
    assert taped_only(entries) == taped_only(entries_of(emitter))


@pytest.mark.parametrize("ending", ANY_ENDING, ids=lambda ending: ending.status)
def test_a_response_that_never_began_is_taped_too(ending: Ending) -> None:
    emitter = recording(opened(BODIES[1]))
    events = emitter.created() + emitter.finish(ending, None, 9)
    response = as_stored(emitter.response)
    replay = Replay(reopened(response), obfuscates=False)
    assert sent(replay.open() + replay.feed(unpack(taped(emitter), response))) == sent(events)


@pytest.mark.parametrize("text", ["é", "e\u0301", "👩‍👩‍👧", "𝄞", "\ufeff\x00", "\u2028", "ﷺ"])
def test_lengths_are_those_of_characters_whatever_these_are(text: str) -> None:
    pieces: list[Delta] = [Text(char) for char in text]
    emitter = ended(*pieces, Text(text), Thought(text), Refusal(text))
    assert unpack(taped(emitter), as_stored(emitter.response)) == entries_of(emitter)


def test_what_a_tape_says_does_not_depend_on_how_calls_overlap() -> None:
    deltas: list[Delta] = [CallStarted(0, "f"), CallStarted(1, "g", "custom", "space"), CallDelta(1, "a")]
    deltas += [CallDelta(0, ""), CallDelta(0, "{"), CallDelta(1, "b"), CallDone(1), CallStarted(1, "h")]
    deltas += [CallDelta(1, "[]"), CallDelta(0, "}"), CallDone(0), Text("x")]
    emitter = ended(*deltas, ending=ANY_ENDING[3])
    assert unpack(taped(emitter), as_stored(emitter.response)) == entries_of(emitter)


def test_a_message_of_many_parts_is_cut_at_the_right_places() -> None:
    emitter = ended(Text("a"), Refusal("b"), Text("cd"), Text(""), Refusal(""), Text(""))
    (message,) = emitter.response.output
    assert isinstance(message, Message)
    assert len(message.content) == 5
    assert unpack(taped(emitter), as_stored(emitter.response)) == entries_of(emitter)


# ---- a tape that cannot be read


@given(lists=any_lists(), data=st.data())
def test_a_damaged_tape_is_never_told(lists: list[list[Delta]], data: st.DataObject) -> None:
    emitter = recording(opened())
    told(emitter, lists)
    emitter.finish(ANY_ENDING[2], USAGE, 9)
    tape = bytearray(taped(emitter))
    tape[data.draw(st.integers(0, len(tape) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(UnreadableTape):
        unpack(bytes(tape), emitter.response)


def test_a_piece_of_a_tape_is_not_a_tape() -> None:
    emitter = ended(Thought("hm"), Text("a"))
    tape = taped(emitter)
    for length in range(len(tape)):
        with pytest.raises(UnreadableTape):
            unpack(tape[:length], emitter.response)
    with pytest.raises(UnreadableTape):
        unpack(tape + b"\x00", emitter.response)


def test_a_tape_of_another_version_is_refused_in_these_words() -> None:
    emitter = ended(Text("a"))
    with pytest.raises(UnreadableTape, match="another version than 1"):
        unpack(bytes((VERSION + 1,)) + taped(emitter)[1:], emitter.response)


def test_a_tape_of_the_time_before_the_server_ran_tools_is_read_as_ever() -> None:
    emitter = recording(Response(id="resp_019a8b7c6d5e7f008000000000000000", created_at=1, model="m"))
    deltas: list[Delta] = [Thought("h"), Thought("m"), Break("commentary"), Text("Hel"), Text("lo")]
    deltas += [CallStarted(0, "f"), CallStarted(1, "g", "custom", "space"), CallDelta(1, "ab"), CallDelta(0, "{}")]
    told(emitter, [[*deltas, CallDone(0), CallDelta(1, "c")]])
    emitter.finish(ANY_ENDING[1], None, 9)
    assert unpack(OLD_TAPE, emitter.response) == entries_of(emitter)


def test_a_tape_of_another_response_is_refused() -> None:
    emitter, other = ended(Text("a")), ended(Text("a"))
    with pytest.raises(UnreadableTape):
        unpack(taped(other), emitter.response)


@pytest.mark.parametrize(
    "said",
    [
        [Text("abc")],
        [Text("abcde")],
        [Text("abcd", (LOGPROB,))],
        [Text("abcd"), Citation(CITATIONS[0])],
        [Text("abcd"), Thought("x")],
        [Text("abcd"), Summary("x")],
        [Text("abcd"), Refusal("x")],
        [Text("abcd"), CallStarted(0, "f"), CallDelta(1, "{}")],
        [Text("abcd"), CallStarted(0, "f"), CallDelta(0, "[1]")],
        [Text("abcd"), CallStarted(0, "f"), CallStarted(1, "f"), CallDelta(0, "[]")],
        [Text("abcd"), CallDelta(1, "[]")],
    ],
    ids=repr,
)
def test_a_tape_that_does_not_fit_what_the_response_says_is_refused(said: list[Entry]) -> None:
    emitter = ended(Text("abcd"), CallStarted(0, "f"), CallDelta(0, "{}"))
    fits: list[Entry] = [Began(), Text("abcd"), CallStarted(0, "f"), CallDelta(0, "{}"), END]
    assert unpack(pack([fits], emitter.response), emitter.response) == fits
    with pytest.raises(UnreadableTape, match="does not fit"):
        unpack(pack([[Began(), *said, END]], emitter.response), emitter.response)


def test_a_tape_of_a_failure_does_not_fit_a_response_that_completed() -> None:
    emitter, failed = ended(Text("a")), ended(Text("a"), ending=ANY_ENDING[2])
    with pytest.raises(UnreadableTape, match="one of them failed"):
        unpack(pack([entries_of(failed)], emitter.response), emitter.response)


# ---- the same version, the same bytes


def test_events_do_not_change_while_the_version_stays() -> None:
    """Responses that were stored long ago are told by the emitter of today: who changes SUM changes VERSION too, and
    keeps what is needed to tell the older ones."""
    response = Response(id="resp_019a8b7c6d5e7f008000000000000000", created_at=1, model="m", background=True)
    emitter = recording(replace(response, status="queued"), obfuscates=True)
    deltas: list[Delta] = [Thought("h"), Thought("m"), Summary("a", 0), Summary("b", 1), Text("Hel", (LOGPROB,))]
    deltas += [Text("lo"), Citation(CITATIONS[0]), Refusal("no"), CallStarted(0, "f"), CallStarted(1, "g", "custom")]
    deltas += [CallDelta(1, "x"), CallDelta(0, "{}"), CallDone(0), CallDone(1), Text("!")]
    deltas += [CallStarted(0, "h", "function", "space"), CallDelta(0, "[")]
    events = told(emitter, [deltas]) + emitter.finish(ANY_ENDING[5], usage([Counts(input_tokens=3)]), 9)
    ours = [event for event in events if not isinstance(event, ResponseEvent)]  # those carry what was stored
    assert (VERSION, sha256(sent(ours)).hexdigest()) == (1, SUM)


# ---- small and fast


@pytest.mark.parametrize("tokens", [50, 200, 1000, 2000])
def test_all_that_is_kept_of_a_streamed_answer_is_at_most_half_as_much_again_as_its_json(tokens: int) -> None:
    emitter = _spoken(tokens)
    json = len(encode(emitter.response))
    assert len(REQUEST) + json + len(taped(emitter)) <= 1.5 * json


def test_taping_takes_linear_time() -> None:
    short, long = _spoken(10_000), _spoken(100_000)
    assert _seconds(long) < 30 * _seconds(short)


def _spoken(tokens: int) -> Emitter:
    emitter = recording(opened())
    told(emitter, [[Text(f"{number % 999:03d} ")] for number in range(tokens)])
    emitter.finish(ANY_ENDING[0], usage([Counts(input_tokens=30, output_tokens=tokens)]), 1_763_000_009)
    return emitter


def _seconds(emitter: Emitter) -> float:
    entries = entries_of(emitter)

    def wind_and_unwind() -> None:
        assert len(unpack(pack([entries], emitter.response), emitter.response)) == len(entries)

    return least_spent_on(wind_and_unwind)
