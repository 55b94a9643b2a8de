"""What the server does stays open while the model goes on, until it ran or the response ends."""

import json
from typing import Any

import msgspec
import pytest

from antiphon.core.deltas import (
    Break,
    CallDelta,
    CallDone,
    CallStarted,
    Delta,
    Opened,
    Put,
    Ran,
    Stage,
    Text,
    Thought,
    Turned,
)
from antiphon.core.emitter.fold import Ending, fold
from antiphon.core.prompt import Counts
from antiphon.core.replay.packed_log import UnreadableTape, pack, unpack
from antiphon.core.replay.replay import Replay, decode_entries, encode_entries, reopened
from antiphon.errors import EngineFailed
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.items import (
    CodeInterpreterCall,
    Compaction,
    CustomToolCall,
    FunctionCall,
    FunctionCallOutput,
    InputText,
    McpCall,
    McpListTools,
    Message,
    Reasoning,
    WebSearchCall,
)
from antiphon.protocol.types.response import Response
from tests.core.emitter.streams import (
    ENDINGS,
    as_stored,
    emitted,
    entries_of,
    numbered_ids,
    opened,
    recording,
    sent,
    told,
)
from tests.core.emitter.tool_item_examples import ENDS, PUT
from tests.oracles.responses import accumulate, check_event, check_response

CUT = ENDINGS[1]
SEARCH, LIST = ENDS[WebSearchCall][0], ENDS[McpListTools][0]
START = CallStarted(0, "t", "mcp", "s")
CALLED: list[Delta] = [START, CallDelta(0, "{}"), CallDone(0)]
RAN = Ran(0, McpCall(server_label="s", name="t", arguments="{}", output="42", status="completed"))


def lines(events: list[Event]) -> list[str]:
    """Each event by its type and its item's place."""
    plain = [json.loads(msgspec.json.encode(event)) for event in events]
    for event in plain:
        check_event(event)
    accumulate(plain)
    check_response(json.loads(msgspec.json.encode(fold(events))))
    return [f"{event.get('output_index', '-')} {event['type'].removeprefix('response.')}" for event in plain]


def done(response: Response) -> list[tuple[type, Any]]:
    return [(type(item), getattr(item, "status", None)) for item in response.output]


# ---- what stays open, and what is closed


@pytest.mark.shows("E.6")
def test_a_call_that_the_server_runs_stays_open_while_the_model_speaks_and_calls_the_client() -> None:
    deltas: list[Delta] = [*CALLED, Text("a"), CallStarted(1, "f"), CallDelta(1, "{}"), CallDone(1), Thought("b")]
    assert lines(emitted([*deltas, RAN]))[2:-1] == [
        "0 output_item.added",
        "0 mcp_call.in_progress",
        "0 mcp_call_arguments.delta",
        "0 mcp_call_arguments.done",
        "1 output_item.added",
        "1 content_part.added",
        "1 output_text.delta",
        "1 output_text.done",
        "1 content_part.done",
        "1 output_item.done",
        "2 output_item.added",
        "2 function_call_arguments.delta",
        "2 function_call_arguments.done",
        "2 output_item.done",
        "3 output_item.added",
        "3 content_part.added",
        "3 reasoning_text.delta",
        "0 mcp_call.completed",
        "0 output_item.done",
        "3 reasoning_text.done",
        "3 content_part.done",
        "3 output_item.done",
    ]


@pytest.mark.shows("E.3")
def test_calls_that_run_side_by_side_end_in_any_order_and_keep_their_places() -> None:
    deltas: list[Delta] = [*CALLED, CallStarted(1, "u", "mcp", "s"), CallDelta(1, "[]"), CallDone(1), Turned()]
    deltas += [Opened(2, SEARCH), Stage(2, "searching"), Ran(2, SEARCH)]
    deltas += [Ran(1, McpCall(server_label="s", name="u", arguments="[]", output="2", status="completed")), RAN]
    events = emitted([*deltas, Text("so")])
    assert lines(events)[-15:-6] == [
        "2 web_search_call.in_progress",
        "2 web_search_call.searching",
        "2 web_search_call.completed",
        "2 output_item.done",
        "1 mcp_call.completed",
        "1 output_item.done",
        "0 mcp_call.completed",
        "0 output_item.done",
        "3 output_item.added",
    ]
    first, second, *_ = fold(events).output
    assert isinstance(first, McpCall)
    assert isinstance(second, McpCall)
    assert [(call.name, call.output) for call in (first, second)] == [("t", "42"), ("u", "2")]


def test_arguments_that_nobody_ended_are_whole_when_something_else_is_said() -> None:
    for other in (Text("a"), Thought("a"), Turned(), RAN):
        told_so_far = lines(emitted([START, CallDelta(0, "{}"), other], CUT))
        assert told_so_far.count("0 mcp_call_arguments.done") == 1
        assert told_so_far[5] == "0 mcp_call_arguments.done"


def test_the_end_of_a_models_call_closes_what_it_said_and_not_what_the_server_does() -> None:
    deltas: list[Delta] = [*CALLED, CallStarted(1, "f"), CallStarted(2, "g", "custom"), Text("a"), Turned()]
    emitter = numbered_ids()
    told(emitter, [[*deltas]])
    assert done(emitter.response) == [
        (McpCall, "in_progress"),
        (FunctionCall, "completed"),
        (CustomToolCall, "completed"),
        (Message, "completed"),
    ]
    emitter.feed([Text("of the next")])
    assert len(emitter.response.output) == 5


def test_a_phase_belongs_to_the_models_call_in_which_it_was_said() -> None:
    made = fold(emitted([*CALLED, Break("commentary"), Turned(), RAN, Text("a")]))
    message = made.output[-1]
    assert isinstance(message, Message)
    assert not message.phase


def test_what_was_said_before_a_deed_of_the_server_is_over_when_that_begins() -> None:
    for deed in (Opened(1, SEARCH), Put(PUT[0]), START):
        emitter = numbered_ids()
        told(emitter, [[Thought("hm"), deed]])
        assert done(emitter.response)[0] == (Reasoning, "completed")


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.status)
def test_the_end_closes_what_still_runs_and_what_the_model_was_saying(ending: Ending) -> None:
    deltas: list[Delta] = [Opened(9, LIST), Ran(9, LIST), *CALLED, Opened(1, SEARCH), CallStarted(2, "u", "mcp", "s")]
    events = emitted([*deltas, CallDelta(2, '{"'), Opened(3, LIST)], ending)
    lines(events)
    listed, first, search, second, cut = fold(events).output
    assert listed.error == cut.error or isinstance(cut.error, str)  # type: ignore[union-attr]  # lists
    assert [first.status, search.status, second.status] == ["incomplete"] * 3  # type: ignore[union-attr]  # calls
    assert (first.arguments, second.arguments) == ("{}", '{"')  # type: ignore[union-attr]  # calls


def test_what_was_told_of_a_call_is_not_changed_by_what_came_of_it() -> None:
    other = McpCall(server_label="evil", name="other", arguments='{"more":1}', output="42", status="completed")
    (call,) = [item for item in fold(emitted([*CALLED, Ran(0, other)], CUT)).output if isinstance(item, McpCall)]
    assert (call.server_label, call.name, call.arguments, call.output) == ("s", "t", "{}", "42")


@pytest.mark.shows("A.66")
def test_the_arguments_of_a_call_and_the_code_to_be_run_are_padded_like_text() -> None:
    code = ENDS[CodeInterpreterCall][0]
    deltas: list[Delta] = [START, CallDelta(0, '{"é":1}'), Opened(1, code), Ran(1, code), Text("abcd")]
    events = [json.loads(msgspec.json.encode(event)) for event in emitted(deltas, emitter=numbered_ids(True))]
    padded = [event for event in events if "obfuscation" in event]
    assert [event["type"].split(".")[1] for event in padded] == [
        "mcp_call_arguments",
        "code_interpreter_call_code",
        "output_text",
    ]
    assert {len((event["delta"] + event["obfuscation"]).encode()) % 16 for event in padded} == {0}
    for event in events:
        check_event(event)


# ---- ids


def test_an_item_is_found_by_its_key_from_its_beginning_on() -> None:
    emitter = recording(opened())
    told(emitter, [[*CALLED, Opened(1, SEARCH), CallStarted(2, "f"), CallStarted(3, "g", "custom")]])
    ids = [item.id for item in emitter.response.output]
    assert [emitter.item_id(key) for key in range(4)] == ids
    emitter.feed([RAN, CallStarted(0, "t", "mcp", "s")])
    assert emitter.item_id(0) == emitter.response.output[-1].id != ids[0]
    emitter.finish(CUT, None, 2)
    assert emitter.item_id(1) == ids[1]


# ---- what cannot be


@pytest.mark.parametrize(
    ("before", "wrong"),
    [
        ([], RAN),
        ([*CALLED, RAN], RAN),
        ([], Stage(0, "searching")),
        ([CallStarted(0, "f")], RAN),
        ([Opened(0, SEARCH)], Opened(0, SEARCH)),
        ([*CALLED], Opened(0, SEARCH)),
        ([CallStarted(0, "f")], Opened(0, SEARCH)),
        ([*CALLED], CallStarted(0, "t", "mcp", "s")),
        ([Opened(0, SEARCH)], CallStarted(0, "f")),
        ([*CALLED], CallDelta(0, "}")),
        ([START, Text("a")], CallDelta(0, "}")),
        ([Opened(0, ENDS[McpCall][0])], CallDelta(0, "}")),
        ([Opened(0, SEARCH)], RAN),
        ([*CALLED], Ran(0, SEARCH)),
    ],
    ids=str,
)
def test_what_cannot_be_fails_and_leaves_no_trace(before: list[Delta], wrong: Delta) -> None:
    emitter = recording(opened())
    events = told(emitter, [before])
    with pytest.raises(EngineFailed) as failed:
        emitter.feed([Text("so"), Break(), wrong, Text("never")] if before == [] else [wrong, Text("never")])
    events += emitter.finish(Ending(status="failed", error=failed.value), None, 2)
    assert wrong not in entries_of(emitter)[len(before) + 1 :]
    replay = Replay(reopened(emitter.response), obfuscates=False)
    assert sent(replay.open() + replay.feed(entries_of(emitter))) == sent(events)
    lines(events)


def test_a_late_end_of_arguments_is_no_harm() -> None:
    assert lines(emitted([*CALLED, CallDone(0), RAN, CallDone(0)])) == lines(emitted([*CALLED, RAN]))


# ---- a model that has nothing to say


@pytest.mark.shows("A.50")
@pytest.mark.parametrize(
    "deltas",
    [
        [Opened(1, LIST), Ran(1, LIST)],
        [*CALLED, Turned(), RAN],
        [Thought("hm"), *CALLED, Turned(), RAN, Turned()],
    ],
    ids=str,
)
def test_a_model_that_says_nothing_about_what_was_done_for_it_gives_an_empty_message(deltas: list[Delta]) -> None:
    message = fold(emitted(deltas)).output[-1]
    assert isinstance(message, Message)
    assert message.status == "completed"
    assert not isinstance(fold(emitted(deltas, CUT)).output[-1], Message)


def test_an_output_that_the_model_does_not_answer_gives_an_empty_message_too() -> None:
    emitter = numbered_ids()
    told(emitter, [[CallStarted(1, "f"), CallDone(1), Turned()]])
    (call,) = emitter.response.output
    assert isinstance(call, FunctionCall)
    emitter.feed([Put(FunctionCallOutput(call_id=call.call_id, output="42"))])
    emitter.finish(ENDINGS[0], None, 2)
    assert [type(item) for item in emitter.response.output] == [FunctionCall, FunctionCallOutput, Message]


@pytest.mark.parametrize(
    "deltas",
    [
        [CallStarted(1, "f"), *CALLED, Turned(), RAN],
        [*CALLED, CallStarted(1, "run", "custom"), Turned(), RAN],
        [*CALLED, Turned(), RAN, Put(PUT[0])],
        [*CALLED, Turned(), Put(PUT[0]), RAN],
        [Opened(1, ENDS[Compaction][0]), Ran(1, ENDS[Compaction][0])],  # may be all that it asked for
    ],
    ids=str,
)
def test_a_client_that_has_the_word_gets_no_empty_message(deltas: list[Delta]) -> None:
    assert not any(isinstance(item, Message) for item in fold(emitted(deltas)).output)


# ---- logs and tapes


def test_a_log_carries_what_tools_said_and_what_models_counted() -> None:
    counts = Counts(input_tokens=7, cached_tokens=3, output_tokens=2, reasoning_tokens=1)
    entries: list[Any] = [*CALLED, Turned(counts), Ran(0, RAN.item, [InputText(text="42")]), Turned(), Put(PUT[2])]
    entries += [Opened(1, SEARCH), Stage(1, "searching"), Ran(1, SEARCH, "a page")]
    assert decode_entries(encode_entries(entries)) == entries


def test_a_tape_does_not_carry_them() -> None:
    emitter = recording(opened())
    emitted([*CALLED, Turned(Counts(input_tokens=7)), Ran(0, RAN.item, "secret")], emitter=emitter)
    tape = pack([entries_of(emitter)], emitter.response)
    assert b"secret" not in tape
    assert unpack(tape, as_stored(emitter.response))[1:-1] == [*CALLED, Turned(), RAN]


def test_a_tape_keeps_a_beginning_that_the_end_does_not_tell() -> None:
    _, _, page, unknown, _ = ENDS[WebSearchCall]
    emitter = recording(opened())
    events = emitted([Opened(1, SEARCH), Opened(2, unknown), Ran(2, page), Ran(1, SEARCH), Text("a")], emitter=emitter)
    response = as_stored(emitter.response)
    tape = pack([entries_of(emitter)], emitter.response)
    replay = Replay(reopened(response), obfuscates=False)
    assert sent(replay.open() + replay.feed(unpack(tape, response))) == sent(events)
    assert tape.count(b"web_search_call") == 1


def test_what_the_server_did_takes_a_few_bytes_of_a_tape() -> None:
    emitter = recording(opened())
    emitted([Opened(1, LIST), Ran(1, LIST), *CALLED, Turned(), RAN, Text("a")], emitter=emitter)
    assert len(pack([entries_of(emitter)], emitter.response)) < 120


@pytest.mark.parametrize(
    "wrong",
    [
        [Opened(1, LIST), Ran(1, LIST)],
        [*CALLED, Ran(1, SEARCH)],
        [Put(PUT[0]), *CALLED],
        [START, CallDelta(0, "{"), Opened(1, SEARCH)],
        [CallStarted(1, "f"), CallStarted(0, "f"), CallDelta(0, "{}")],
        [*CALLED, Opened(1, SEARCH), Put(PUT[0])],
    ],
    ids=str,
)
def test_a_tape_of_other_deeds_does_not_fit(wrong: list[Any]) -> None:
    emitter = recording(opened())
    emitted([*CALLED, Opened(1, SEARCH), RAN, Ran(1, SEARCH), Text("")], emitter=emitter)
    began, ended = entries_of(emitter)[0], entries_of(emitter)[-1]
    with pytest.raises(UnreadableTape, match="does not fit"):
        unpack(pack([[began, *wrong, ended]], emitter.response), emitter.response)
