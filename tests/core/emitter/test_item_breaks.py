"""A `Break` closes the open item and sets the phase of the next message."""

from antiphon.core.deltas import Break, CallDelta, CallDone, CallStarted, Delta, ReasoningDelta, Text
from antiphon.core.emitter.fold import ResponseEnding
from antiphon.protocol.types.items import FunctionCall, Message, Reasoning
from antiphon.protocol.types.response import Response
from tests.core.emitter.streams import (
    emit_stream,
    get_log_entries,
    make_emitter,
    make_recording_emitter,
    make_response,
    repack_log,
)

CUT = ResponseEnding(status="incomplete", reason="max_output_tokens")


def test_a_delta_after_a_break_starts_a_new_item_of_the_same_kind() -> None:
    made = _make_response(
        ReasoningDelta("a"), ReasoningDelta("b"), Break(), ReasoningDelta("c"), Text("d"), Break(), Text("e")
    )
    assert [_get_text(item) for item in made.output] == ["ab", "c", "d", "e"]


def test_a_phase_applies_to_the_next_message_only() -> None:
    made = _make_response(Break("commentary"), Text("a"), Break("final_answer"), Text("b"), Break(), Text("c"))
    phases = [item.phase or None for item in made.output if isinstance(item, Message)]
    assert phases == ["commentary", "final_answer", None]


def test_a_phase_skips_other_items_before_its_message() -> None:
    made = _make_response(Break("commentary"), ReasoningDelta("a"), CallStarted(0, "f"), CallDone(0), Text("b"))
    assert isinstance(made.output[1], FunctionCall)
    assert isinstance(made.output[2], Message)
    assert made.output[2].phase == "commentary"


def test_an_item_closed_by_a_break_is_completed_in_a_truncated_response() -> None:
    made = _make_response(ReasoningDelta("a"), Break(), Break("final_answer"), Text("b"), ending=CUT)
    assert [getattr(item, "status", None) for item in made.output] == ["completed", "incomplete"]


def test_an_item_cut_by_a_break_is_incomplete_in_a_completed_response() -> None:
    made = _make_response(Text("a"), Break(cut=True), Text("b"))
    assert [getattr(item, "status", None) for item in made.output] == ["incomplete", "completed"]


def test_a_break_does_not_close_calls() -> None:
    made = _make_response(CallStarted(0, "f"), CallDelta(0, "{"), Break(), CallDelta(0, "}"), CallDone(0))
    assert [item.arguments for item in made.output if isinstance(item, FunctionCall)] == ["{}"]


def test_breaks_alone_emit_no_events() -> None:
    nothing = [event.type for event in emit_stream([])]
    assert [event.type for event in emit_stream([Break(), Break("commentary"), Break()])] == nothing


def test_a_packed_log_preserves_breaks_and_phases() -> None:
    made = make_recording_emitter(make_response())
    emit_stream(
        [ReasoningDelta("a"), Break(), Break("commentary"), Text("b"), Break("final_answer"), Text("c")], emitter=made
    )
    assert repack_log(made) == get_log_entries(made)


def _make_response(*deltas: Delta, ending: ResponseEnding | None = None) -> Response:
    made = make_emitter()
    emit_stream([*deltas], ending or ResponseEnding(status="completed"), made)
    return made.response


def _get_text(item: object) -> str:
    assert isinstance(item, Message | Reasoning)
    return "".join([getattr(part, "text", "") for part in item.content or ()])
