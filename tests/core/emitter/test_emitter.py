import json
from collections import defaultdict
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Citation, Delta, Refusal, Summary, Text, Thought
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.emitter.event_log import Began, Ended
from antiphon.core.emitter.fold import Ending, fold
from antiphon.errors import Busy, EngineFailed, Unavailable
from antiphon.protocol.types import events as ev
from antiphon.protocol.types.items import FunctionCall, Message, OutputText, Reasoning, UrlCitation
from tests.core.emitter.streams import (
    BODIES,
    ENDINGS,
    LOGPROB,
    USAGE,
    any_deltas,
    any_lists,
    emitted,
    entries_of,
    numbered_ids,
    opened,
    recording,
    sent,
    told,
    types,
)
from tests.oracles.responses import accumulate, check_event

START = ["response.created", "response.in_progress"]


@pytest.mark.shows("A.57", "A.58")
def test_text_is_an_item_with_a_part_and_every_beginning_has_an_end() -> None:
    assert types(emitted([Text("Hel"), Text("lo")])) == [
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
def test_a_raw_thought_is_a_reasoning_item_with_a_part_before_the_message() -> None:
    events = emitted([Thought("hm"), Text("ok")])
    assert types(events)[2:8] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    reasoning, message = fold(events).output
    assert isinstance(reasoning, Reasoning)
    assert isinstance(message, Message)


@pytest.mark.shows("A.37")
def test_a_summary_has_a_part_for_each_paragraph() -> None:
    events = emitted([Summary("a", 0), Summary("b", 0), Summary("c", 1)])
    assert types(events)[3:11] == [
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
    ]
    (item,) = fold(events).output
    assert isinstance(item, Reasoning)
    assert [part.text for part in item.summary] == ["ab", "c"]


@pytest.mark.shows("A.59")
def test_a_refusal_is_a_part_of_its_own() -> None:
    events = emitted([Text("I"), Refusal("n"), Refusal("o")])
    assert types(events)[5:12] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.content_part.added",
        "response.refusal.delta",
        "response.refusal.delta",
        "response.refusal.done",
        "response.content_part.done",
    ]
    (item,) = fold(events).output
    assert isinstance(item, Message)
    assert [part.__struct_config__.tag for part in item.content] == ["output_text", "refusal"]


@pytest.mark.shows("A.60")
def test_a_function_call_says_its_name_and_arguments_when_it_is_done() -> None:
    events = emitted([CallStarted(0, "f"), CallDelta(0, '{"a"'), CallDelta(0, ":1}"), CallDone(0)])
    done = next(event for event in events if isinstance(event, ev.FunctionCallArgumentsDone))
    assert (done.name, done.arguments) == ("f", '{"a":1}')
    assert types(events)[2:7] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]


@pytest.mark.shows("A.61")
def test_a_custom_call_streams_its_input() -> None:
    events = emitted([CallStarted(0, "run", "custom"), CallDelta(0, "ls"), CallDone(0)])
    assert "response.custom_tool_call_input.delta" in types(events)
    assert "response.custom_tool_call_input.done" in types(events)


@pytest.mark.shows("D.15")
def test_parallel_calls_may_overlap_and_keep_their_own_arguments() -> None:
    deltas: list[Delta] = [CallStarted(0, "f"), CallStarted(1, "g"), CallDelta(1, "{}"), CallDelta(0, "[]")]
    calls = fold(emitted([*deltas, CallDone(1), CallDone(0)])).output
    assert [(call.name, call.arguments) for call in calls if isinstance(call, FunctionCall)] == [
        ("f", "[]"),
        ("g", "{}"),
    ]


def test_a_call_that_was_cut_is_incomplete_and_one_that_ended_is_not() -> None:
    deltas: list[Delta] = [CallStarted(0, "f"), CallDelta(0, "{}"), CallDone(0), CallStarted(1, "g"), CallDelta(1, "{")]
    done, cut = fold(emitted(deltas, ENDINGS[1])).output
    assert isinstance(done, FunctionCall)
    assert isinstance(cut, FunctionCall)
    assert (done.status, cut.status, cut.arguments) == ("completed", "incomplete", "{")


@pytest.mark.shows("A.50")
def test_nothing_said_by_itself_is_one_empty_message() -> None:
    (item,) = fold(emitted([])).output
    assert isinstance(item, Message)
    assert item.status == "completed"


@pytest.mark.shows("A.50")
def test_nothing_said_before_a_cut_is_no_item_at_all() -> None:
    response = fold(emitted([], ENDINGS[1]))
    assert (response.status, response.output) == ("incomplete", [])


@pytest.mark.shows("A.48")
def test_a_failure_is_told_flat_and_nested_and_then_ends_the_stream() -> None:
    error, failed = emitted([Text("a")], ENDINGS[2])[-2:]
    assert isinstance(error, ev.Error)
    assert isinstance(failed, ev.Failed)
    assert (error.message, error.error.message) == ("The engine died.", "The engine died.")
    assert failed.response.error is not None
    assert failed.response.error.code == "server_error"


@pytest.mark.shows("H2.7")
def test_an_error_that_may_pass_says_when_to_come_back() -> None:
    busy = Ending(status="failed", error=Busy("Full.", retry_after=3.0))
    error = emitted([], busy)[-2]
    assert isinstance(error, ev.Error)
    assert error.retry_after == 3.0


@pytest.mark.shows("A.49")
def test_a_cancelled_stream_ends_incomplete_with_status_cancelled() -> None:
    last = emitted([Text("a")], ENDINGS[3])[-1]
    assert isinstance(last, ev.Incomplete)
    assert last.response.status == "cancelled"


@pytest.mark.shows("A.58", "A4.4")
def test_logprobs_go_with_their_delta_and_gather_in_the_part() -> None:
    events = emitted([Text("a", (LOGPROB,)), Text("a", (LOGPROB,))])
    delta = next(event for event in events if isinstance(event, ev.OutputTextDelta))
    assert "bytes" not in json.loads(msgspec.json.encode(delta))["logprobs"][0]
    (message,) = json.loads(msgspec.json.encode(fold(events)))["output"]
    assert [one["bytes"] for one in message["content"][0]["logprobs"]] == [[97], [97]]


@pytest.mark.shows("A.58")
def test_an_annotation_is_told_and_kept_with_its_part() -> None:
    citation = UrlCitation(url="http://x", title="x", start_index=0, end_index=1)
    events = emitted([Text("a"), Citation(citation)])
    (added,) = [event for event in events if isinstance(event, ev.OutputTextAnnotationAdded)]
    assert (added.annotation, added.annotation_index) == (citation, 0)
    (message,) = fold(events).output
    assert isinstance(message, Message)
    (part,) = message.content
    assert isinstance(part, OutputText)
    assert part.annotations == [citation]


def test_a_response_in_an_event_does_not_change_when_the_run_goes_on() -> None:
    emitter = numbered_ids()
    (created,) = emitter.created()
    before = msgspec.json.encode(created)
    emitter.in_progress()
    emitter.feed([Text("a")])
    emitter.finish(ENDINGS[0], None, 2)
    assert msgspec.json.encode(created) == before


def test_a_queued_response_says_so_before_it_begins() -> None:
    emitter = recording(opened(BODIES[1]))
    events = told(emitter, [[Text("a")]]) + emitter.finish(ENDINGS[0], None, 2)
    assert types(events)[:3] == ["response.created", "response.queued", "response.in_progress"]
    carried = [event.response.status for event in events if isinstance(event, ev.ResponseEvent)]
    assert carried == ["queued", "queued", "in_progress", "completed"]
    assert accumulate([_plain(event) for event in events]).status == "completed"


def test_a_response_that_is_cancelled_in_the_queue_never_begins() -> None:
    emitter = recording(opened(BODIES[1]))
    events = emitter.created() + emitter.finish(ENDINGS[3], None, 2)
    assert types(events) == ["response.created", "response.queued", "response.incomplete"]
    assert emitter.response.status == "cancelled"


def test_the_log_is_what_was_fed_between_the_beginning_and_the_end() -> None:
    emitter = recording(opened())
    deltas: list[Delta] = [Text("a"), Text("b"), Thought("c")]
    told(emitter, [deltas[:1], deltas[1:2], [], deltas[2:]])
    emitter.finish(ENDINGS[0], USAGE, 2)
    assert entries_of(emitter) == [Began(), *deltas, Ended(status="completed", usage=USAGE, at=2)]
    assert emitter.log is not None
    assert all(emitter.log)  # no list without an entry


@settings(max_examples=200)
@given(lists=any_lists(), ending=st.sampled_from(ENDINGS))
def test_a_response_is_the_same_whether_or_not_its_events_are_heard(lists: list[list[Delta]], ending: Ending) -> None:
    response = opened()
    heard, hushed = recording(response), recording(response)
    hushed.hushed = True
    told(heard, lists)
    told(hushed, lists)
    heard.finish(ending, USAGE, 2)
    hushed.finish(ending, USAGE, 2)
    assert hushed.response == heard.response
    assert entries_of(hushed) == entries_of(heard)


def test_nothing_is_made_of_a_text_that_nobody_hears_but_its_item() -> None:
    emitter = numbered_ids()
    emitter.hushed = True
    events = emitted([Text("Hel", (LOGPROB,)), Text("lo")], emitter=emitter)
    assert types(events) == ["response.output_item.added"]


def test_whoever_keeps_nothing_has_no_log() -> None:
    emitter = numbered_ids()
    told(emitter, [[Text("a")]])
    emitter.finish(ENDINGS[0], None, 2)
    assert emitter.log is None


def test_a_call_that_goes_on_after_something_else_was_said_fails_and_loses_nothing() -> None:
    """Engines do that. What came with it before is told together with the end."""
    emitter = recording(opened())
    events = told(emitter, [[CallStarted(0, "f"), CallDelta(0, "{")]])
    with pytest.raises(EngineFailed) as failed:
        emitter.feed([Text("so"), CallDelta(0, "}"), Text("never")])
    events += emitter.finish(Ending(status="failed", error=failed.value), None, 2)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert fold(events) == emitter.response
    assert entries_of(emitter)[1:-1] == [CallStarted(0, "f"), CallDelta(0, "{"), Text("so")]
    assert accumulate([_plain(event) for event in events if event.type != "error"]).status == "failed"


def test_a_call_under_the_key_of_an_open_one_ends_that() -> None:
    deltas: list[Delta] = [CallStarted(0, "f"), CallDelta(0, "{}"), CallStarted(0, "g"), CallDelta(0, "[]")]
    calls = fold(emitted(deltas)).output
    assert [(call.name, call.arguments) for call in calls if isinstance(call, FunctionCall)] == [
        ("f", "{}"),
        ("g", "[]"),
    ]


@settings(max_examples=200)
@given(ending=st.sampled_from(ENDINGS), lists=any_lists())
def test_an_end_that_could_not_be_kept_is_as_if_it_had_never_been(ending: Ending, lists: list[list[Delta]]) -> None:
    response, error = opened(), Unavailable("The store does not answer.", retry_after=1.0)
    emitter, failed = recording(response), recording(response)
    events = told(emitter, lists)
    emitter.finish(ending, USAGE, 2)
    events += emitter.instead(error, 3)
    at_once = told(failed, lists) + failed.finish(Ending(status="failed", error=error), USAGE, 3)
    assert sent(events) == sent(at_once)
    assert (emitter.response, entries_of(emitter)) == (failed.response, entries_of(failed))


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.status)
@given(deltas=any_deltas())
@pytest.mark.shows("A.55", "A.56")
def test_any_deltas_fold_to_their_terminal_response(ending: Ending, deltas: list[Delta]) -> None:
    events = emitted(deltas, ending)
    last = events[-1]
    assert isinstance(last, ev.Completed | ev.Incomplete | ev.Failed)
    assert fold(events) == last.response
    assert fold(events[:-1]).output == last.response.output
    assert [event.sequence_number for event in events] == list(range(len(events)))
    terminals = [event for event in events if isinstance(event, ev.Completed | ev.Incomplete | ev.Failed)]
    assert terminals == [last]


@given(deltas=any_deltas())
def test_the_deltas_of_a_part_add_up_to_what_its_end_says(deltas: list[Delta]) -> None:
    heard: dict[tuple[str, str, object], str] = defaultdict(str)
    for event in map(_plain, emitted(deltas)):
        kind, _, step = event["type"].rpartition(".")
        key = kind, event.get("item_id", ""), event.get("content_index", event.get("summary_index"))
        if step == "delta":
            heard[key] += event["delta"]
        elif whole := {"text", "refusal", "arguments", "input"} & event.keys():
            assert event[whole.pop()] == heard[key]


@given(deltas=any_deltas())
@pytest.mark.shows("A.57")
def test_every_beginning_has_one_end(deltas: list[Delta]) -> None:
    begun: list[tuple[str, ...]] = []
    for event in map(_plain, emitted(deltas)):
        kind, _, step = event["type"].rpartition(".")
        place = kind, *(str(event.get(name)) for name in ("output_index", "content_index", "summary_index"))
        if step == "added" and kind != "response.output_text.annotation":
            assert place not in begun
            begun.append(place)
        elif step == "done" and place in begun:
            begun.remove(place)
    assert begun == []


@given(deltas=any_deltas(), cuts=st.lists(st.integers(0, 25)))
def test_how_deltas_are_grouped_changes_nothing(deltas: list[Delta], cuts: list[int]) -> None:
    emitter = numbered_ids()
    events = [*emitter.created(), *emitter.in_progress()]
    edges = [0, *sorted(cut for cut in cuts if cut < len(deltas)), len(deltas)]
    for start, end in pairwise(edges):
        events += emitter.feed(deltas[start:end])
    events += _finish_like_emitted(emitter)
    assert events == emitted(deltas)


@given(deltas=any_deltas())
@pytest.mark.shows("A.23", "A.57")
def test_any_stream_is_valid_for_the_sdk_and_its_accumulator(deltas: list[Delta]) -> None:
    events = [_plain(event) for event in emitted(deltas)]
    for event in events:
        check_event(event)
    assert accumulate(events).status == "completed"


def _plain(event: ev.Event) -> dict:  # type: ignore[type-arg]  # JSON of any shape
    return json.loads(msgspec.json.encode(event))  # type: ignore[no-any-return]  # as above


def _finish_like_emitted(emitter: Emitter) -> list[ev.Event]:
    terminal = emitted([])[-1]
    assert isinstance(terminal, ev.Completed)
    return emitter.finish(ENDINGS[0], terminal.response.usage, 2)


@given(st.lists(st.lists(st.sampled_from([Text("a"), Text(""), Text("b", (LOGPROB,))]), min_size=1)), st.booleans())
def test_text_alone_is_said_in_the_same_events_as_it_is_fed(lists: list[list[Text]], obfuscates: bool) -> None:
    said, fed = numbered_ids(obfuscates), numbered_ids(obfuscates)
    for texts in lists:
        assert said.say(texts) == fed.feed(texts)
    assert said.finish(ENDINGS[0], None, 2) == fed.finish(ENDINGS[0], None, 2)
