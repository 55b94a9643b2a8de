"""Each kind of thing that the server does: its events in their order, how it looks at first, and how when it is cut."""

import json
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, Opened, Put, Ran, ServerItem, Stage
from antiphon.core.emitter.fold import Ending, fold
from antiphon.core.emitter.tool_items import KINDS, NOT_LISTED, bare, cut_short, shown
from antiphon.core.replay.packed_log import pack, unpack
from antiphon.protocol.decoding.stored_items import PREFIXES
from antiphon.protocol.types.builtin_items import SearchAction, WebSearchResult
from antiphon.protocol.types.events import OutputItemAdded
from antiphon.protocol.types.items import (
    CodeInterpreterCall,
    Compaction,
    FileSearchCall,
    FunctionCallOutput,
    ImageGenerationCall,
    McpApprovalRequest,
    McpCall,
    McpListTools,
    WebSearchCall,
)
from tests.core.emitter.streams import ENDINGS, emitted, entries_of, opened, recording
from tests.core.emitter.tool_item_examples import ENDS, PUT
from tests.oracles.responses import accumulate, check_event, check_response

CUT = ENDINGS[1]
ADDED, DONE = "response.output_item.added", "response.output_item.done"


def told(deltas: list[Delta], ending: Ending = ENDINGS[0]) -> list[dict[str, Any]]:
    """What comes between `in_progress` and the message or the end; all of it is valid for the SDK and adds up."""
    events = emitted(deltas, ending)
    plain = [json.loads(msgspec.json.encode(event)) for event in events]
    for event in plain:
        check_event(event)
    check_response(json.loads(msgspec.json.encode(fold(events))))
    accumulate(plain)
    return [event for event in plain[2:-1] if event.get("output_index") == 0]


def names(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def ran(first: ServerItem, last: ServerItem, *words: str) -> list[dict[str, Any]]:
    return told([Opened(5, first), *[Stage(5, word) for word in words], Ran(5, last)])


# ---- the order of events


@pytest.mark.shows("E.6")
def test_an_mcp_call_streams_its_arguments_and_then_waits_for_its_result() -> None:
    call = McpCall(server_label="s", name="t", arguments="{}", output="42", status="completed")
    pieces: list[Delta] = [CallStarted(0, "t", "mcp", "s"), CallDelta(0, "{"), CallDelta(0, "}"), CallDone(0)]
    events = told([*pieces, Ran(0, call)])
    assert names(events) == [
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_call.completed",
        "output_item.done",
    ]
    assert events[4]["arguments"] == "{}"
    assert (events[-1]["item"]["output"], events[-1]["item"]["error"]) == ("42", None)
    failed = names(told([*pieces, Ran(0, ENDS[McpCall][2])]))
    assert failed == [*names(events)[:5], "mcp_call.failed", "output_item.done"]


@pytest.mark.shows("E.6")
def test_an_mcp_call_whose_arguments_are_known_tells_them_in_one_piece() -> None:
    first, last, _ = ENDS[McpCall]
    assert names(ran(first, first)) == [
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_call.completed",
        "output_item.done",
    ]
    assert "mcp_call_arguments.delta" not in names(ran(last, last))
    assert "mcp_call_arguments.done" in names(ran(last, last))


@pytest.mark.parametrize(
    ("kind", "words", "expected"),
    [
        (McpListTools, (), ["mcp_list_tools.in_progress", "mcp_list_tools.completed"]),
        (
            WebSearchCall,
            ("searching",),
            ["web_search_call.in_progress", "web_search_call.searching", "web_search_call.completed"],
        ),
        (
            FileSearchCall,
            ("searching",),
            ["file_search_call.in_progress", "file_search_call.searching", "file_search_call.completed"],
        ),
        (
            CodeInterpreterCall,
            ("interpreting",),
            [
                "code_interpreter_call.in_progress",
                "code_interpreter_call_code.delta",
                "code_interpreter_call_code.done",
                "code_interpreter_call.interpreting",
                "code_interpreter_call.completed",
            ],
        ),
        (
            ImageGenerationCall,
            ("generating",),
            [
                "image_generation_call.in_progress",
                "image_generation_call.generating",
                "image_generation_call.completed",
            ],
        ),
        (Compaction, (), ["compaction.compacting"]),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
@pytest.mark.shows("E.6")
def test_every_other_kind_begins_goes_on_and_ends_in_its_own_events(
    kind: type, words: tuple[str, ...], expected: list[str]
) -> None:
    item = ENDS[kind][0]
    events = ran(item, item, *words)
    assert names(events) == ["output_item.added", *expected, "output_item.done"]
    told_of = {event.get("item_id", event.get("item", {}).get("id")) for event in events}
    assert told_of == {f"{PREFIXES[kind]}_0"}


@pytest.mark.parametrize(
    ("item", "last"),
    [
        (ENDS[McpCall][2], "mcp_call.failed"),
        (ENDS[McpListTools][2], "mcp_list_tools.failed"),
        (ENDS[WebSearchCall][1], "web_search_call.in_progress"),  # OpenAI has no word for it
        (ENDS[FileSearchCall][1], "file_search_call.in_progress"),
        (ENDS[CodeInterpreterCall][1], "code_interpreter_call_code.done"),
        (ENDS[ImageGenerationCall][1], "image_generation_call.in_progress"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_what_failed_is_never_said_to_be_completed(item: ServerItem, last: str) -> None:
    assert names(ran(item, item))[-2:] == [last, "output_item.done"]


@pytest.mark.parametrize("item", PUT, ids=lambda item: type(item).__name__)
@pytest.mark.shows("E.6")
def test_what_is_put_is_added_and_done_at_once(item: Any) -> None:
    added, done = told([Put(item)])
    assert (added["type"], done["type"]) == (ADDED, DONE)
    assert added["item"] == done["item"]
    assert done["item"]["id"] == f"{PREFIXES.get(type(item), 'item')}_0"


def test_an_output_that_is_put_is_completed_and_a_request_for_approval_has_no_status() -> None:
    _, done = told([Put(FunctionCallOutput(call_id="call_1", output="42"))])
    assert done["item"]["status"] == "completed"
    _, asked = told([Put(McpApprovalRequest(server_label="s", name="t", arguments="{}"))])
    assert asked["item"].keys() == {"type", "id", "server_label", "name", "arguments"}


# ---- how it looks


FIRST: dict[type, dict[str, Any]] = {
    McpCall: {
        "type": "mcp_call", "id": "x", "status": "in_progress", "server_label": "s", "name": "t", "arguments": "",
        "output": None, "error": None, "approval_request_id": None,
    },
    McpListTools: {"type": "mcp_list_tools", "id": "x", "server_label": "s", "tools": []},
    WebSearchCall: {
        "type": "web_search_call", "id": "x", "status": "in_progress",
        "action": {"type": "search", "query": "q", "queries": ["q"]},
    },
    FileSearchCall: {
        "type": "file_search_call", "id": "x", "status": "in_progress", "queries": ["q"], "results": None,
    },
    CodeInterpreterCall: {
        "type": "code_interpreter_call", "id": "x", "status": "in_progress", "container_id": "c", "code": "",
        "outputs": None,
    },
    ImageGenerationCall: {
        "type": "image_generation_call", "id": "x", "status": "in_progress", "result": None, "size": "1024x1024",
    },
    Compaction: {"type": "compaction", "id": "x", "encrypted_content": ""},
}  # fmt: skip
LAST: dict[type, dict[str, Any]] = {
    McpCall: {"status": "incomplete", "arguments": '{"a":1}'},
    McpListTools: {"error": NOT_LISTED},
    WebSearchCall: {"status": "incomplete"},
    FileSearchCall: {"status": "incomplete"},
    CodeInterpreterCall: {"status": "incomplete", "code": "1+1"},
    ImageGenerationCall: {"status": "failed"},
    Compaction: {},
}


def test_every_kind_of_item_of_the_server_is_known_here() -> None:
    assert KINDS.keys() == FIRST.keys() == LAST.keys() == ENDS.keys()


@pytest.mark.parametrize("kind", FIRST, ids=lambda kind: kind.__name__)
def test_an_item_is_added_without_what_nobody_knows_yet(kind: type) -> None:
    assert json.loads(msgspec.json.encode(bare(ENDS[kind][0], "x"))) == FIRST[kind]
    (added,) = [event for event in emitted([Opened(5, ENDS[kind][0])], CUT) if isinstance(event, OutputItemAdded)]
    assert added.item == bare(ENDS[kind][0], f"{PREFIXES[kind]}_0")


def test_what_a_search_found_is_not_there_when_it_begins() -> None:
    found = WebSearchCall(
        status="completed", action=SearchAction(), results=[WebSearchResult(url="https://a.example/")]
    )
    assert bare(found, "x").results is UNSET


@pytest.mark.parametrize("kind", FIRST, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.status)
def test_an_item_that_the_end_found_open_is_cut_short(kind: type, ending: Ending) -> None:
    events = told([Opened(5, ENDS[kind][0])], ending)
    assert events[-1]["type"] == DONE
    assert events[-1]["item"] == FIRST[kind] | LAST[kind] | {"id": f"{PREFIXES[kind]}_0"}
    assert not any(event["type"].endswith(".completed") for event in events)


@pytest.mark.parametrize("item", [item for items in ENDS.values() for item in items], ids=lambda i: type(i).__name__)
def test_an_item_that_is_cut_again_is_the_same(item: ServerItem) -> None:
    cut = cut_short(item)
    assert cut_short(cut) == cut
    assert shown(cut) == shown(item)


@pytest.mark.shows("E.6")
def test_what_is_not_there_is_left_out_and_not_null() -> None:
    """The AI SDK refuses a null where it expects nothing."""
    listed = ran(ENDS[McpListTools][0], ENDS[McpListTools][0])[-1]["item"]
    assert "error" not in listed
    assert listed["tools"] == [
        {"name": "t", "input_schema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    ]


def test_an_item_without_a_status_gets_the_one_that_it_earned() -> None:
    call = McpCall(server_label="s", name="t", arguments="{}")
    assert call.status is UNSET
    assert ran(call, call)[-1]["item"]["status"] == "completed"
    failed = msgspec.structs.replace(call, error=ENDS[McpCall][1].error)  # type: ignore[union-attr]  # an McpCall
    assert ran(call, failed)[-1]["item"]["status"] == "failed"


# ---- stages


def test_a_word_that_an_item_has_no_event_for_says_nothing() -> None:
    item = ENDS[WebSearchCall][0]
    assert names(ran(item, item, "generating", "nonsense")) == names(ran(item, item))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_tape_remembers_every_stage_that_is_told(kind: type) -> None:
    """Who adds a word here adds it to the tape's."""
    emitter, item = recording(opened()), ENDS[kind][0]
    stages = [Stage(5, word) for word in KINDS[kind].stages]
    emitted([Opened(5, item), *stages, Stage(5, "nonsense"), Ran(5, item)], emitter=emitter)
    entries = unpack(pack([entries_of(emitter)], emitter.response), emitter.response)
    assert [entry for entry in entries if isinstance(entry, Stage)] == stages
