"""The Responses emitter: events of every kind of delta and ending, checked by folding them and with the openai SDK.

Covers `core/emitter/fold.py`, `core/emitter/items_in_progress.py` and `core/emitter/parts_in_progress.py`.
"""

import json
from collections import defaultdict
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from antiphon.core.emitter.event_log import RunEnded, RunStarted
from antiphon.core.emitter.fold import ResponseEnding
from antiphon.errors import Busy, EngineFailed, Unavailable
from antiphon.protocol.types import events as ev
from antiphon.protocol.types.items import FunctionCall, Message, Reasoning
from antiphon.protocol.types.parts import OutputText, UrlCitation
from tests.core.emitter.streams import (
    BODIES,
    ENDINGS,
    LOGPROB,
    USAGE,
    any_delta_lists,
    any_deltas,
    emit_stream,
    emit_unfinished,
    encode_sse,
    event_types,
    get_log_entries,
    make_emitter,
    make_recording_emitter,
    make_response,
)
from tests.oracles.fold import fold_events
from tests.oracles.responses import accumulate, check_event

START = ["response.created", "response.in_progress"]


@pytest.mark.shows("A.57", "A.58")
def test_text_opens_an_item_and_a_part_and_closes_both() -> None:
    assert event_types(emit_stream([Text("Hel"), Text("lo")])) == [
        *START,
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


@pytest.mark.shows("A.36")
def test_raw_reasoning_is_a_reasoning_item_before_the_message() -> None:
    events = emit_stream([ReasoningDelta("hm"), Text("ok")])
    assert event_types(events)[2:8] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    reasoning, message = fold_events(events).output
    assert isinstance(reasoning, Reasoning)
    assert isinstance(message, Message)


@pytest.mark.shows("A.37")
def test_a_summary_has_a_part_for_each_paragraph() -> None:
    events = emit_stream([Summary("a", 0), Summary("b", 0), Summary("c", 1)])
    assert event_types(events)[3:11] == [
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
    ]
    (item,) = fold_events(events).output
    assert isinstance(item, Reasoning)
    assert [part.text for part in item.summary] == ["ab", "c"]


@pytest.mark.shows("A.59")
def test_a_refusal_is_a_part_of_its_own() -> None:
    events = emit_stream([Text("I"), Refusal("n"), Refusal("o")])
    assert event_types(events)[5:12] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.content_part.added",
        "response.refusal.delta",
        "response.refusal.delta",
        "response.refusal.done",
        "response.content_part.done",
    ]
    (item,) = fold_events(events).output
    assert isinstance(item, Message)
    assert [part.__struct_config__.tag for part in item.content] == ["output_text", "refusal"]


@pytest.mark.shows("A.60")
def test_arguments_done_has_the_function_name_and_the_arguments() -> None:
    events = emit_stream([CallStarted(0, "f"), CallDelta(0, '{"a"'), CallDelta(0, ":1}"), CallDone(0)])
    done = next(event for event in events if isinstance(event, ev.FunctionCallArgumentsDone))
    assert (done.name, done.arguments) == ("f", '{"a":1}')
    assert event_types(events)[2:7] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]


@pytest.mark.shows("A.61")
def test_a_custom_call_streams_its_input() -> None:
    events = emit_stream([CallStarted(0, "run", "custom"), CallDelta(0, "ls"), CallDone(0)])
    assert "response.custom_tool_call_input.delta" in event_types(events)
    assert "response.custom_tool_call_input.done" in event_types(events)


@pytest.mark.shows("D.15")
def test_overlapping_parallel_calls_have_separate_arguments() -> None:
    deltas: list[Delta] = [CallStarted(0, "f"), CallStarted(1, "g"), CallDelta(1, "{}"), CallDelta(0, "[]")]
    calls = fold_events(emit_stream([*deltas, CallDone(1), CallDone(0)])).output
    assert [(call.name, call.arguments) for call in calls if isinstance(call, FunctionCall)] == [
        ("f", "[]"),
        ("g", "{}"),
    ]


def test_a_truncated_call_is_incomplete_and_a_finished_call_is_completed() -> None:
    deltas: list[Delta] = [CallStarted(0, "f"), CallDelta(0, "{}"), CallDone(0), CallStarted(1, "g"), CallDelta(1, "{")]
    done, cut = fold_events(emit_stream(deltas, ENDINGS[1])).output
    assert isinstance(done, FunctionCall)
    assert isinstance(cut, FunctionCall)
    assert (done.status, cut.status, cut.arguments) == ("completed", "incomplete", "{")


@pytest.mark.shows("A.50")
def test_a_completed_response_without_output_has_one_empty_message() -> None:
    (item,) = fold_events(emit_stream([])).output
    assert isinstance(item, Message)
    assert item.status == "completed"


@pytest.mark.shows("A.50")
def test_an_incomplete_response_without_output_has_no_items() -> None:
    response = fold_events(emit_stream([], ENDINGS[1]))
    assert (response.status, response.output) == ("incomplete", [])


@pytest.mark.shows("A.48")
def test_a_failure_emits_a_flat_and_nested_error_and_then_response_failed() -> None:
    error, failed = emit_stream([Text("a")], ENDINGS[2])[-2:]
    assert isinstance(error, ev.Error)
    assert isinstance(failed, ev.Failed)
    assert (error.message, error.error.message) == ("The engine died.", "The engine died.")
    assert failed.response.error is not None
    assert failed.response.error.code == "server_error"


@pytest.mark.shows("H2.7")
def test_a_transient_error_has_retry_after() -> None:
    busy = ResponseEnding(status="failed", error=Busy("Full.", retry_after=3.0))
    error = emit_stream([], busy)[-2]
    assert isinstance(error, ev.Error)
    assert error.retry_after == 3.0


@pytest.mark.shows("A.49")
def test_a_cancelled_stream_ends_incomplete_with_status_cancelled() -> None:
    last = emit_stream([Text("a")], ENDINGS[3])[-1]
    assert isinstance(last, ev.Incomplete)
    assert last.response.status == "cancelled"


@pytest.mark.shows("A.58", "A4.4")
def test_logprobs_are_sent_with_their_delta_and_collected_in_the_part() -> None:
    events = emit_stream([Text("a", (LOGPROB,)), Text("a", (LOGPROB,))])
    delta = next(event for event in events if isinstance(event, ev.OutputTextDelta))
    assert "bytes" not in json.loads(msgspec.json.encode(delta))["logprobs"][0]
    (message,) = json.loads(msgspec.json.encode(fold_events(events)))["output"]
    assert [one["bytes"] for one in message["content"][0]["logprobs"]] == [[97], [97]]


@pytest.mark.shows("A.58")
def test_an_annotation_is_emitted_and_stored_in_its_part() -> None:
    citation = UrlCitation(url="http://x", title="x", start_index=0, end_index=1)
    events = emit_stream([Text("a"), Citation(citation)])
    (added,) = [event for event in events if isinstance(event, ev.OutputTextAnnotationAdded)]
    assert (added.annotation, added.annotation_index) == (citation, 0)
    (message,) = fold_events(events).output
    assert isinstance(message, Message)
    (part,) = message.content
    assert isinstance(part, OutputText)
    assert part.annotations == [citation]


def test_a_response_in_an_event_is_not_changed_by_later_deltas() -> None:
    emitter = make_emitter()
    (created,) = emitter.emit_created()
    before = msgspec.json.encode(created)
    emitter.emit_in_progress()
    emitter.feed([Text("a")])
    emitter.finish(ENDINGS[0], None, 2)
    assert msgspec.json.encode(created) == before


def test_a_queued_response_emits_queued_before_in_progress() -> None:
    emitter = make_recording_emitter(make_response(BODIES[1]))
    events = emit_unfinished(emitter, [[Text("a")]]) + emitter.finish(ENDINGS[0], None, 2)
    assert event_types(events)[:3] == ["response.created", "response.queued", "response.in_progress"]
    carried = [event.response.status for event in events if isinstance(event, ev.ResponseEvent)]
    assert carried == ["queued", "queued", "in_progress", "completed"]
    assert accumulate([_to_json(event) for event in events]).status == "completed"


def test_a_response_cancelled_in_the_queue_never_emits_in_progress() -> None:
    emitter = make_recording_emitter(make_response(BODIES[1]))
    events = emitter.emit_created() + emitter.finish(ENDINGS[3], None, 2)
    assert event_types(events) == ["response.created", "response.queued", "response.incomplete"]
    assert emitter.response.status == "cancelled"


def test_the_log_holds_the_fed_deltas_between_start_and_end() -> None:
    emitter = make_recording_emitter(make_response())
    deltas: list[Delta] = [Text("a"), Text("b"), ReasoningDelta("c")]
    emit_unfinished(emitter, [deltas[:1], deltas[1:2], [], deltas[2:]])
    emitter.finish(ENDINGS[0], USAGE, 2)
    assert get_log_entries(emitter) == [RunStarted(), *deltas, RunEnded(status="completed", usage=USAGE, at=2)]
    assert emitter.log is not None
    assert all(emitter.log)  # no logged list is empty


@given(lists=any_delta_lists(), ending=st.sampled_from(ENDINGS))
def test_suppressed_events_change_neither_the_response_nor_the_log(
    lists: list[list[Delta]], ending: ResponseEnding
) -> None:
    response = make_response()
    full, suppressed = make_recording_emitter(response), make_recording_emitter(response)
    suppressed.suppress_events = True
    emit_unfinished(full, lists)
    emit_unfinished(suppressed, lists)
    full.finish(ending, USAGE, 2)
    suppressed.finish(ending, USAGE, 2)
    assert suppressed.response == full.response
    assert get_log_entries(suppressed) == get_log_entries(full)


def test_suppressed_text_emits_only_the_added_item() -> None:
    emitter = make_emitter()
    emitter.suppress_events = True
    events = emit_stream([Text("Hel", (LOGPROB,)), Text("lo")], emitter=emitter)
    assert event_types(events) == ["response.output_item.added"]


def test_an_emitter_without_a_log_records_nothing() -> None:
    emitter = make_emitter()
    emit_unfinished(emitter, [[Text("a")]])
    emitter.finish(ENDINGS[0], None, 2)
    assert emitter.log is None


def test_a_call_delta_after_other_output_fails_and_loses_no_event() -> None:
    """Engines do this. Events of earlier deltas in the same list are emitted together with the end."""
    emitter = make_recording_emitter(make_response())
    events = emit_unfinished(emitter, [[CallStarted(0, "f"), CallDelta(0, "{")]])
    with pytest.raises(EngineFailed) as failed:
        emitter.feed([Text("so"), CallDelta(0, "}"), Text("never")])
    events += emitter.finish(ResponseEnding(status="failed", error=failed.value), None, 2)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert fold_events(events) == emitter.response
    assert get_log_entries(emitter)[1:-1] == [CallStarted(0, "f"), CallDelta(0, "{"), Text("so")]
    assert accumulate([_to_json(event) for event in events if event.type != "error"]).status == "failed"


def test_a_call_with_the_key_of_an_open_call_closes_that_call() -> None:
    deltas: list[Delta] = [CallStarted(0, "f"), CallDelta(0, "{}"), CallStarted(0, "g"), CallDelta(0, "[]")]
    calls = fold_events(emit_stream(deltas)).output
    assert [(call.name, call.arguments) for call in calls if isinstance(call, FunctionCall)] == [
        ("f", "{}"),
        ("g", "[]"),
    ]


@given(ending=st.sampled_from(ENDINGS), lists=any_delta_lists())
def test_a_replaced_end_leaves_no_trace_of_the_first_end(ending: ResponseEnding, lists: list[list[Delta]]) -> None:
    response, error = make_response(), Unavailable("The store does not answer.", retry_after=1.0)
    emitter, failed = make_recording_emitter(response), make_recording_emitter(response)
    events = emit_unfinished(emitter, lists)
    emitter.finish(ending, USAGE, 2)
    events += emitter.replace_end(error, 3)
    at_once = emit_unfinished(failed, lists) + failed.finish(ResponseEnding(status="failed", error=error), USAGE, 3)
    assert encode_sse(events) == encode_sse(at_once)
    assert (emitter.response, get_log_entries(emitter)) == (failed.response, get_log_entries(failed))


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.status)
@given(deltas=any_deltas())
@pytest.mark.shows("A.55", "A.56")
def test_any_deltas_fold_to_their_terminal_response(ending: ResponseEnding, deltas: list[Delta]) -> None:
    events = emit_stream(deltas, ending)
    last = events[-1]
    assert isinstance(last, ev.Completed | ev.Incomplete | ev.Failed)
    assert fold_events(events) == last.response
    assert fold_events(events[:-1]).output == last.response.output
    assert [event.sequence_number for event in events] == list(range(len(events)))
    terminals = [event for event in events if isinstance(event, ev.Completed | ev.Incomplete | ev.Failed)]
    assert terminals == [last]


@given(deltas=any_deltas())
def test_the_deltas_of_a_part_concatenate_to_its_done_event(deltas: list[Delta]) -> None:
    texts: dict[tuple[str, str, object], str] = defaultdict(str)
    for event in map(_to_json, emit_stream(deltas)):
        kind, _, step = event["type"].rpartition(".")
        key = kind, event.get("item_id", ""), event.get("content_index", event.get("summary_index"))
        if step == "delta":
            texts[key] += event["delta"] if isinstance(event["delta"], str) else ""  # of a shell: an object
        elif fields := {"text", "refusal", "arguments", "input"} & event.keys():
            assert event[fields.pop()] == texts[key]


@given(deltas=any_deltas())
@pytest.mark.shows("A.57")
def test_every_added_event_has_exactly_one_done_event(deltas: list[Delta]) -> None:
    begun: list[tuple[str, ...]] = []
    for event in map(_to_json, emit_stream(deltas)):
        kind, _, step = event["type"].rpartition(".")
        position = kind, *(str(event.get(name)) for name in ("output_index", "content_index", "summary_index"))
        if step == "added" and kind != "response.output_text.annotation":
            assert position not in begun
            begun.append(position)
        elif step == "done" and position in begun:
            begun.remove(position)
    assert begun == []


@given(deltas=any_deltas(), cuts=st.lists(st.integers(0, 25)))
def test_grouping_of_deltas_does_not_change_the_events(deltas: list[Delta], cuts: list[int]) -> None:
    emitter = make_emitter()
    events = [*emitter.emit_created(), *emitter.emit_in_progress()]
    edges = [0, *sorted(cut for cut in cuts if cut < len(deltas)), len(deltas)]
    for start, end in pairwise(edges):
        events += emitter.feed(deltas[start:end])
    events += _finish_like_emit_stream(emitter)
    assert events == emit_stream(deltas)


@given(deltas=any_deltas())
@pytest.mark.shows("A.23", "A.57")
def test_any_stream_is_valid_for_the_sdk_and_its_accumulator(deltas: list[Delta]) -> None:
    events = [_to_json(event) for event in emit_stream(deltas)]
    for event in events:
        check_event(event)
    assert accumulate(events).status == "completed"


def _to_json(event: ev.Event) -> dict:  # type: ignore[type-arg]  # JSON of any shape
    return json.loads(msgspec.json.encode(event))  # type: ignore[no-any-return]  # as above


def _finish_like_emit_stream(emitter: Emitter) -> list[ev.Event]:
    terminal = emit_stream([])[-1]
    assert isinstance(terminal, ev.Completed)
    return emitter.finish(ENDINGS[0], terminal.response.usage, 2)


@given(st.lists(st.lists(st.sampled_from([Text("a"), Text(""), Text("b", (LOGPROB,))]), min_size=1)), st.booleans())
def test_feed_text_emits_the_same_events_as_feed(lists: list[list[Text]], obfuscates: bool) -> None:
    text_emitter, delta_emitter = make_emitter(obfuscates), make_emitter(obfuscates)
    for texts in lists:
        assert text_emitter.feed_text(texts) == delta_emitter.feed(texts)
    assert text_emitter.finish(ENDINGS[0], None, 2) == delta_emitter.finish(ENDINGS[0], None, 2)
