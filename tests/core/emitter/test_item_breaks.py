"""A Break ends the item that is open, and says what phase the next message has."""

from antiphon.core.deltas import Break, CallDelta, CallDone, CallStarted, Delta, Text, Thought
from antiphon.core.emitter.fold import Ending
from antiphon.core.replay.packed_log import pack, unpack
from antiphon.protocol.types.items import FunctionCall, Message, Reasoning
from antiphon.protocol.types.response import Response
from tests.core.emitter.streams import emitted, entries_of, numbered_ids, opened, recording

CUT = Ending(status="incomplete", reason="max_output_tokens")


def test_what_follows_a_break_is_an_item_of_its_own_though_it_is_of_the_same_kind() -> None:
    made = _response(Thought("a"), Thought("b"), Break(), Thought("c"), Text("d"), Break(), Text("e"))
    assert [_said(item) for item in made.output] == ["ab", "c", "d", "e"]


def test_a_message_has_the_phase_that_was_said_last_before_it_and_the_next_one_has_none() -> None:
    made = _response(Break("commentary"), Text("a"), Break("final_answer"), Text("b"), Break(), Text("c"))
    phases = [item.phase or None for item in made.output if isinstance(item, Message)]
    assert phases == ["commentary", "final_answer", None]


def test_a_phase_waits_for_its_message() -> None:
    made = _response(Break("commentary"), Thought("a"), CallStarted(0, "f"), CallDone(0), Text("b"))
    assert isinstance(made.output[1], FunctionCall)
    assert isinstance(made.output[2], Message)
    assert made.output[2].phase == "commentary"


def test_an_item_that_a_break_ended_is_complete_though_the_answer_was_cut() -> None:
    made = _response(Thought("a"), Break(), Break("final_answer"), Text("b"), ending=CUT)
    assert [getattr(item, "status", None) for item in made.output] == ["completed", "incomplete"]


def test_an_item_that_a_break_cut_is_incomplete_though_the_answer_went_on() -> None:
    made = _response(Text("a"), Break(cut=True), Text("b"))
    assert [getattr(item, "status", None) for item in made.output] == ["incomplete", "completed"]


def test_a_break_leaves_calls_open() -> None:
    made = _response(CallStarted(0, "f"), CallDelta(0, "{"), Break(), CallDelta(0, "}"), CallDone(0))
    assert [item.arguments for item in made.output if isinstance(item, FunctionCall)] == ["{}"]


def test_breaks_alone_say_nothing() -> None:
    nothing = [event.type for event in emitted([])]
    assert [event.type for event in emitted([Break(), Break("commentary"), Break()])] == nothing


def test_a_tape_remembers_breaks_and_phases() -> None:
    made = recording(opened())
    emitted([Thought("a"), Break(), Break("commentary"), Text("b"), Break("final_answer"), Text("c")], emitter=made)
    entries = entries_of(made)
    assert unpack(pack([entries], made.response), made.response) == entries


def _response(*deltas: Delta, ending: Ending | None = None) -> Response:
    made = numbered_ids()
    emitted([*deltas], ending or Ending(status="completed"), made)
    return made.response


def _said(item: object) -> str:
    assert isinstance(item, Message | Reasoning)
    return "".join([getattr(part, "text", "") for part in item.content or ()])
