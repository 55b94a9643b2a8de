"""Server items stay open while the model continues, until they finish or the response ends."""

import json
from os import urandom
from typing import Any

import msgspec
import pytest

from antiphon.core.deltas import (
    Break,
    CallDelta,
    CallDone,
    CallStarted,
    CommandDone,
    Delta,
    ItemAdded,
    Progress,
    ReasoningDelta,
    ServerItemDone,
    ServerItemStarted,
    Text,
    TurnEnded,
)
from antiphon.core.emitter.fold import ResponseEnding
from antiphon.core.prompt import TokenCounts
from antiphon.core.replay import Replay, decode_entries, encode_entries, reset_response
from antiphon.errors import EngineFailed
from antiphon.protocol.types.events import Event, OutputItemAdded, OutputItemDone
from antiphon.protocol.types.items import (
    CodeImage,
    CodeInterpreterCall,
    CodeLogs,
    Compaction,
    CustomToolCall,
    FunctionCall,
    FunctionCallOutput,
    ImageGenerationCall,
    McpCall,
    McpListTools,
    Message,
    Reasoning,
    WebSearchCall,
)
from antiphon.protocol.types.parts import InputText
from antiphon.protocol.types.response import Response
from tests.core.emitter.streams import (
    ENDINGS,
    drop_unpacked_fields,
    emit_stream,
    emit_unfinished,
    encode_sse,
    get_log_entries,
    make_emitter,
    make_recording_emitter,
    make_response,
    pack_log,
    repack_log,
    round_trip_json,
)
from tests.core.emitter.tool_item_examples import ADDED_ITEMS, COMMAND_OUTPUTS, SERVER_ITEMS
from tests.oracles.fold import fold_events
from tests.oracles.responses import accumulate, check_event, check_response

CUT = ENDINGS[1]
SEARCH, LIST = SERVER_ITEMS[WebSearchCall][0], SERVER_ITEMS[McpListTools][0]
START = CallStarted(0, "t", "mcp", "s")
CALL: list[Delta] = [START, CallDelta(0, "{}"), CallDone(0)]
CALL_RESULT = ServerItemDone(0, McpCall(server_label="s", name="t", arguments="{}", output="42", status="completed"))


def summarise_events(events: list[Event]) -> list[str]:
    """Check the events with the openai SDK and return output index and type of each."""
    plain = [json.loads(msgspec.json.encode(event)) for event in events]
    for event in plain:
        check_event(event)
    accumulate(plain)
    check_response(json.loads(msgspec.json.encode(fold_events(events))))
    return [f"{event.get('output_index', '-')} {event['type'].removeprefix('response.')}" for event in plain]


def list_statuses(response: Response) -> list[tuple[type, Any]]:
    return [(type(item), getattr(item, "status", None)) for item in response.output]


# ---- open and closed items


@pytest.mark.shows("E.6")
def test_a_server_call_stays_open_while_the_model_emits_text_and_client_calls() -> None:
    deltas: list[Delta] = [
        *CALL,
        Text("a"),
        CallStarted(1, "f"),
        CallDelta(1, "{}"),
        CallDone(1),
        ReasoningDelta("b"),
    ]
    assert summarise_events(emit_stream([*deltas, CALL_RESULT]))[2:-1] == [
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


@pytest.mark.shows("E.18")
@pytest.mark.parametrize("outputs", [None, [CodeLogs(logs="2")]], ids=["hidden", "included"])
def test_code_is_streamed_while_the_model_writes_it(outputs: list[CodeLogs | CodeImage] | None) -> None:
    start = CallStarted(0, "code_interpreter", "code_interpreter", "cntr_1", None, outputs is not None)
    item = CodeInterpreterCall(container_id="cntr_2", code="?", status="completed", outputs=outputs)
    deltas: list[Delta] = [start, CallDelta(0, "1 +"), CallDelta(0, " 1"), CallDone(0), TurnEnded()]
    events = emit_stream([*deltas, Progress(0, "interpreting"), ServerItemDone(0, item), Text("so")])
    assert summarise_events(events)[2:11] == [
        "0 output_item.added",
        "0 code_interpreter_call.in_progress",
        "0 code_interpreter_call_code.delta",
        "0 code_interpreter_call_code.delta",
        "0 code_interpreter_call_code.done",
        "0 code_interpreter_call.interpreting",
        "0 code_interpreter_call.completed",
        "0 output_item.done",
        "1 output_item.added",
    ]
    added, done = [event.item for event in events if isinstance(event, OutputItemAdded | OutputItemDone)][:2]
    assert added == CodeInterpreterCall(
        id="ci_0", container_id="cntr_1", code="", status="in_progress", outputs=None if outputs is None else []
    )
    assert done == CodeInterpreterCall(
        id="ci_0", container_id="cntr_1", code="1 + 1", status="completed", outputs=outputs
    )


@pytest.mark.shows("E.18")
def test_code_that_is_cut_gives_an_incomplete_item() -> None:
    start = CallStarted(0, "code_interpreter", "code_interpreter", "cntr_1")
    events = emit_stream([start, CallDelta(0, "1 +")], CUT)
    assert "0 code_interpreter_call.completed" not in summarise_events(events)
    (item,) = fold_events(events).output
    assert item == CodeInterpreterCall(id="ci_0", container_id="cntr_1", code="1 +", status="incomplete")


@pytest.mark.shows("E.3")
def test_parallel_server_calls_end_in_any_order_at_their_own_index() -> None:
    deltas: list[Delta] = [*CALL, CallStarted(1, "u", "mcp", "s"), CallDelta(1, "[]"), CallDone(1), TurnEnded()]
    deltas += [ServerItemStarted(2, SEARCH), Progress(2, "searching"), ServerItemDone(2, SEARCH)]
    deltas += [
        ServerItemDone(1, McpCall(server_label="s", name="u", arguments="[]", output="2", status="completed")),
        CALL_RESULT,
    ]
    events = emit_stream([*deltas, Text("so")])
    assert summarise_events(events)[-15:-6] == [
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
    first, second, *_ = fold_events(events).output
    assert isinstance(first, McpCall)
    assert isinstance(second, McpCall)
    assert [(call.name, call.output) for call in (first, second)] == [("t", "42"), ("u", "2")]


def test_unfinished_arguments_are_completed_by_the_next_delta() -> None:
    for other in (Text("a"), ReasoningDelta("a"), TurnEnded(), CALL_RESULT):
        summary = summarise_events(emit_stream([START, CallDelta(0, "{}"), other], CUT))
        assert summary.count("0 mcp_call_arguments.done") == 1
        assert summary[5] == "0 mcp_call_arguments.done"


def test_the_end_of_a_turn_closes_model_items_but_not_server_items() -> None:
    deltas: list[Delta] = [*CALL, CallStarted(1, "f"), CallStarted(2, "g", "custom"), Text("a"), TurnEnded()]
    emitter = make_emitter()
    emit_unfinished(emitter, [[*deltas]])
    assert list_statuses(emitter.response) == [
        (McpCall, "in_progress"),
        (FunctionCall, "completed"),
        (CustomToolCall, "completed"),
        (Message, "completed"),
    ]
    emitter.feed([Text("of the next")])
    assert len(emitter.response.output) == 5


def test_a_phase_does_not_outlive_its_turn() -> None:
    made = fold_events(emit_stream([*CALL, Break("commentary"), TurnEnded(), CALL_RESULT, Text("a")]))
    message = made.output[-1]
    assert isinstance(message, Message)
    assert not message.phase


def test_a_server_item_closes_the_open_model_item() -> None:
    for delta in (ServerItemStarted(1, SEARCH), ItemAdded(ADDED_ITEMS[0]), START):
        emitter = make_emitter()
        emit_unfinished(emitter, [[ReasoningDelta("hm"), delta]])
        assert list_statuses(emitter.response)[0] == (Reasoning, "completed")


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.status)
def test_the_end_closes_open_server_items_and_model_items(ending: ResponseEnding) -> None:
    deltas: list[Delta] = [
        ServerItemStarted(9, LIST),
        ServerItemDone(9, LIST),
        *CALL,
        ServerItemStarted(1, SEARCH),
        CallStarted(2, "u", "mcp", "s"),
    ]
    events = emit_stream([*deltas, CallDelta(2, '{"'), ServerItemStarted(3, LIST)], ending)
    summarise_events(events)
    listed, first, search, second, cut = fold_events(events).output
    assert listed.error == cut.error or isinstance(cut.error, str)  # type: ignore[union-attr]  # lists
    assert [first.status, search.status, second.status] == ["incomplete"] * 3  # type: ignore[union-attr]  # calls
    assert (first.arguments, second.arguments) == ("{}", '{"')  # type: ignore[union-attr]  # calls


def test_a_call_result_does_not_change_the_streamed_name_and_arguments() -> None:
    other = McpCall(server_label="evil", name="other", arguments='{"more":1}', output="42", status="completed")
    (call,) = [
        item
        for item in fold_events(emit_stream([*CALL, ServerItemDone(0, other)], CUT)).output
        if isinstance(item, McpCall)
    ]
    assert (call.server_label, call.name, call.arguments, call.output) == ("s", "t", "{}", "42")


@pytest.mark.shows("A.66")
def test_call_arguments_and_interpreter_code_are_padded_like_text() -> None:
    code = SERVER_ITEMS[CodeInterpreterCall][0]
    deltas: list[Delta] = [
        START,
        CallDelta(0, '{"é":1}'),
        ServerItemStarted(1, code),
        ServerItemDone(1, code),
        Text("abcd"),
    ]
    events = [json.loads(msgspec.json.encode(event)) for event in emit_stream(deltas, emitter=make_emitter(True))]
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


def test_an_item_id_can_be_looked_up_by_key_from_the_start_of_the_item() -> None:
    emitter = make_recording_emitter(make_response())
    emit_unfinished(
        emitter, [[*CALL, ServerItemStarted(1, SEARCH), CallStarted(2, "f"), CallStarted(3, "g", "custom")]]
    )
    ids = [item.id for item in emitter.response.output]
    assert [emitter.get_item_id(key) for key in range(4)] == ids
    emitter.feed([CALL_RESULT, CallStarted(0, "t", "mcp", "s")])
    assert emitter.get_item_id(0) == emitter.response.output[-1].id != ids[0]
    emitter.finish(CUT, None, 2)
    assert emitter.get_item_id(1) == ids[1]


# ---- invalid deltas


@pytest.mark.parametrize(
    ("before", "wrong"),
    [
        ([], CALL_RESULT),
        ([*CALL, CALL_RESULT], CALL_RESULT),
        ([], Progress(0, "searching")),
        ([CallStarted(0, "f")], CALL_RESULT),
        ([ServerItemStarted(0, SEARCH)], ServerItemStarted(0, SEARCH)),
        ([*CALL], ServerItemStarted(0, SEARCH)),
        ([CallStarted(0, "f")], ServerItemStarted(0, SEARCH)),
        ([*CALL], CallStarted(0, "t", "mcp", "s")),
        ([ServerItemStarted(0, SEARCH)], CallStarted(0, "f")),
        ([*CALL], CallDelta(0, "}")),
        ([START, Text("a")], CallDelta(0, "}")),
        ([ServerItemStarted(0, SERVER_ITEMS[McpCall][0])], CallDelta(0, "}")),
        ([ServerItemStarted(0, SEARCH)], CALL_RESULT),
        ([*CALL], ServerItemDone(0, SEARCH)),
        ([ServerItemStarted(0, SEARCH)], CommandDone(0, COMMAND_OUTPUTS[0])),
    ],
    ids=str,
)
def test_an_invalid_delta_fails_and_is_not_logged(before: list[Delta], wrong: Delta) -> None:
    emitter = make_recording_emitter(make_response())
    events = emit_unfinished(emitter, [before])
    with pytest.raises(EngineFailed) as failed:
        emitter.feed([Text("so"), Break(), wrong, Text("never")] if before == [] else [wrong, Text("never")])
    events += emitter.finish(ResponseEnding(status="failed", error=failed.value), None, 2)
    assert wrong not in get_log_entries(emitter)[len(before) + 1 :]
    replay = Replay(reset_response(emitter.response), include_obfuscation=False)
    assert encode_sse(replay.open() + replay.feed(get_log_entries(emitter))) == encode_sse(events)
    summarise_events(events)


def test_a_late_call_done_has_no_effect() -> None:
    assert summarise_events(emit_stream([*CALL, CallDone(0), CALL_RESULT, CallDone(0)])) == summarise_events(
        emit_stream([*CALL, CALL_RESULT])
    )


# ---- empty messages


@pytest.mark.shows("A.50")
@pytest.mark.parametrize(
    "deltas",
    [
        [ServerItemStarted(1, LIST), ServerItemDone(1, LIST)],
        [*CALL, TurnEnded(), CALL_RESULT],
        [ReasoningDelta("hm"), *CALL, TurnEnded(), CALL_RESULT, TurnEnded()],
    ],
    ids=str,
)
def test_server_items_without_an_answer_are_followed_by_an_empty_message(deltas: list[Delta]) -> None:
    message = fold_events(emit_stream(deltas)).output[-1]
    assert isinstance(message, Message)
    assert message.status == "completed"
    assert not isinstance(fold_events(emit_stream(deltas, CUT)).output[-1], Message)


def test_an_unanswered_tool_output_is_followed_by_an_empty_message() -> None:
    emitter = make_emitter()
    emit_unfinished(emitter, [[CallStarted(1, "f"), CallDone(1), TurnEnded()]])
    (call,) = emitter.response.output
    assert isinstance(call, FunctionCall)
    emitter.feed([ItemAdded(FunctionCallOutput(call_id=call.call_id, output="42"))])
    emitter.finish(ENDINGS[0], None, 2)
    assert [type(item) for item in emitter.response.output] == [FunctionCall, FunctionCallOutput, Message]


@pytest.mark.parametrize(
    "deltas",
    [
        [CallStarted(1, "f"), *CALL, TurnEnded(), CALL_RESULT],
        [*CALL, CallStarted(1, "run", "custom"), TurnEnded(), CALL_RESULT],
        [*CALL, TurnEnded(), CALL_RESULT, ItemAdded(ADDED_ITEMS[0])],
        [*CALL, TurnEnded(), ItemAdded(ADDED_ITEMS[0]), CALL_RESULT],
        [
            ServerItemStarted(1, SERVER_ITEMS[Compaction][0]),
            ServerItemDone(1, SERVER_ITEMS[Compaction][0]),
        ],  # may be the only requested output
    ],
    ids=str,
)
def test_no_empty_message_is_added_when_the_client_must_act(deltas: list[Delta]) -> None:
    assert not any(isinstance(item, Message) for item in fold_events(emit_stream(deltas)).output)


# ---- logs and packed logs


def test_a_log_holds_tool_outputs_and_token_counts() -> None:
    counts = TokenCounts(input_tokens=7, cached_tokens=3, output_tokens=2, reasoning_tokens=1)
    entries: list[Any] = [
        *CALL,
        TurnEnded(counts),
        ServerItemDone(0, CALL_RESULT.item, [InputText(text="42")]),
        TurnEnded(),
        ItemAdded(ADDED_ITEMS[2]),
    ]
    entries += [ServerItemStarted(1, SEARCH), Progress(1, "searching"), ServerItemDone(1, SEARCH, "a page")]
    assert decode_entries(encode_entries(entries)) == entries


def test_a_packed_log_holds_no_tool_outputs() -> None:
    emitter = make_recording_emitter(make_response())
    emit_stream([*CALL, TurnEnded(), ServerItemDone(0, CALL_RESULT.item, "secret")], emitter=emitter)
    assert repack_log(emitter)[1:-1] == [*CALL, TurnEnded(), CALL_RESULT]


def test_a_packed_log_holds_initial_items_that_the_final_items_do_not_imply() -> None:
    _, _, page, unknown, _ = SERVER_ITEMS[WebSearchCall]
    emitter = make_recording_emitter(make_response())
    events = emit_stream(
        [
            ServerItemStarted(1, SEARCH),
            ServerItemStarted(2, unknown),
            ServerItemDone(2, page),
            ServerItemDone(1, SEARCH),
            Text("a"),
        ],
        emitter=emitter,
    )
    replay = Replay(reset_response(round_trip_json(emitter.response)), include_obfuscation=False)
    assert encode_sse(replay.open() + replay.feed(repack_log(emitter))) == encode_sse(events)


def test_the_result_of_a_server_item_is_not_in_the_packed_log() -> None:
    emitter, image = make_recording_emitter(make_response()), urandom(300_000).hex()
    deltas: list[Any] = [
        ServerItemStarted(1, ImageGenerationCall(status="in_progress")),
        ServerItemDone(1, ImageGenerationCall(status="completed", result=image)),
    ]
    emit_stream([*CALL, TurnEnded(), *deltas, CALL_RESULT, Text("a")], emitter=emitter)
    assert len(pack_log(emitter)) < 500
    assert drop_unpacked_fields(repack_log(emitter)[1:-1])[len(CALL) + 1 : -2] == drop_unpacked_fields(deltas)
