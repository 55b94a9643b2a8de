"""Each kind of server item: its events in order, its initial form, and its truncated form.

Covers `core/emitter/server_item_kinds.py`.
"""

import json
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from antiphon.core.deltas import (
    CallDelta,
    CallDone,
    CallStarted,
    CommandDone,
    Delta,
    ImagePreview,
    ItemAdded,
    Progress,
    ServerItem,
    ServerItemDone,
    ServerItemStarted,
)
from antiphon.core.emitter.fold import ResponseEnding
from antiphon.core.emitter.server_item_kinds import NOT_LISTED, SERVER_ITEM_KINDS
from antiphon.core.emitter.tool_items import initial_view, to_added_item, truncate_item
from antiphon.protocol.decoding.stored_items import PREFIXES
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
    SearchAction,
    ShellCallOutput,
    WebSearchCall,
    WebSearchResult,
)
from tests.core.emitter.streams import ENDINGS, emit_stream, make_recording_emitter, make_response, repack_log
from tests.core.emitter.tool_item_examples import ADDED_ITEMS, COMMAND_OUTPUTS, HOSTED_SHELL_CALL, SERVER_ITEMS
from tests.oracles.fold import fold_events
from tests.oracles.responses import accumulate, check_event, check_response

CUT = ENDINGS[1]
ADDED, DONE = "response.output_item.added", "response.output_item.done"


def emit_checked(deltas: list[Delta], ending: ResponseEnding = ENDINGS[0]) -> list[dict[str, Any]]:
    """Emit the deltas, check the stream with the openai SDK, and return the events of the first item."""
    events = emit_stream(deltas, ending)
    plain = [json.loads(msgspec.json.encode(event)) for event in events]
    for event in plain:
        check_event(event)
    check_response(json.loads(msgspec.json.encode(fold_events(events))))
    accumulate(plain)
    return [event for event in plain[2:-1] if event.get("output_index") == 0]


def event_names(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def run_item(first: ServerItem, last: ServerItem, *stages: str) -> list[dict[str, Any]]:
    return emit_checked(
        [ServerItemStarted(5, first), *[Progress(5, stage) for stage in stages], ServerItemDone(5, last)]
    )


# ---- the order of events


@pytest.mark.shows("E.6")
def test_an_mcp_call_streams_its_arguments_and_then_waits_for_its_result() -> None:
    call = McpCall(server_label="s", name="t", arguments="{}", output="42", status="completed")
    pieces: list[Delta] = [CallStarted(0, "t", "mcp", "s"), CallDelta(0, "{"), CallDelta(0, "}"), CallDone(0)]
    events = emit_checked([*pieces, ServerItemDone(0, call)])
    assert event_names(events) == [
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
    failed = event_names(emit_checked([*pieces, ServerItemDone(0, SERVER_ITEMS[McpCall][2])]))
    assert failed == [*event_names(events)[:5], "mcp_call.failed", "output_item.done"]


@pytest.mark.shows("E.6")
def test_an_mcp_call_with_known_arguments_sends_them_in_one_delta() -> None:
    first, last, _ = SERVER_ITEMS[McpCall]
    assert event_names(run_item(first, first)) == [
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_call.completed",
        "output_item.done",
    ]
    assert "mcp_call_arguments.delta" not in event_names(run_item(last, last))
    assert "mcp_call_arguments.done" in event_names(run_item(last, last))


@pytest.mark.parametrize(
    ("kind", "stages", "expected"),
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
def test_every_other_kind_has_its_own_progress_events(kind: type, stages: tuple[str, ...], expected: list[str]) -> None:
    item = SERVER_ITEMS[kind][0]
    events = run_item(item, item, *stages)
    assert event_names(events) == ["output_item.added", *expected, "output_item.done"]
    item_ids = {event.get("item_id", event.get("item", {}).get("id")) for event in events}
    assert item_ids == {f"{PREFIXES[kind]}_0"}


@pytest.mark.shows("E.6")
def test_a_hosted_shell_call_is_complete_before_the_item_of_its_output_starts() -> None:
    output = SERVER_ITEMS[ShellCallOutput][0]
    events = emit_stream([ServerItemStarted(5, HOSTED_SHELL_CALL), ServerItemDone(5, output)])
    plain = [json.loads(msgspec.json.encode(event)) for event in events]
    for event in plain:
        check_event(event)
    accumulate(plain)
    commands = [f"0 shell_call_command.{step}" for step in ("added", "delta", "done")]
    names = [f"{event.get('output_index')} {event['type'].removeprefix('response.')}" for event in plain[2:]]
    assert names[:13] == [
        "0 output_item.added", *commands, *commands, "0 output_item.done",
        "1 output_item.added",
        "1 shell_call_output_content.delta", "1 shell_call_output_content.delta", "1 shell_call_output_content.done",
        "1 shell_call_output_content.done",
    ]  # fmt: skip
    call, result = plain[-1]["response"]["output"][:2]
    assert (call["id"], result["id"], result["call_id"]) == ("sh_0", "sho_2", call["call_id"])
    assert call["environment"] == {"type": "container_reference", "container_id": "cntr_1"}
    assert (plain[11]["delta"], plain[12]["delta"]) == ({"stdout": "a.py\n"}, {"stderr": "Hm.\n"})
    assert plain[13]["output"] + plain[14]["output"] == result["output"]
    assert result["max_output_length"] == 50


@pytest.mark.shows("E.6")
@pytest.mark.parametrize("end", ["completed", "failed", "cut"])
def test_the_output_of_a_command_is_emitted_when_it_has_ended(end: str) -> None:
    first, second = COMMAND_OUTPUTS
    complete, failed = SERVER_ITEMS[ShellCallOutput]
    start: list[Delta] = [ServerItemStarted(5, HOSTED_SHELL_CALL), CommandDone(5, first)]
    ends: dict[str, list[Delta]] = {"completed": [ServerItemDone(5, complete)], "failed": [ServerItemDone(5, failed)]}
    events = emit_stream([*start, *ends.get(end, [])])
    outputs = [event for event in events if event.type.startswith("response.shell_call_output_content.")]
    steps = ["delta", "delta", "done", *(["done"] if end == "completed" else [])]
    assert [event.type.rpartition(".")[2] for event in outputs] == steps
    item = next(one for one in events[-1].response.output if isinstance(one, ShellCallOutput))  # type: ignore[attr-defined]
    assert item.output == ([first, second] if end == "completed" else [first])
    assert item.status == ("completed" if end == "completed" else "incomplete")


@pytest.mark.parametrize(
    ("item", "last"),
    [
        (SERVER_ITEMS[McpCall][2], "mcp_call.failed"),
        (SERVER_ITEMS[McpListTools][2], "mcp_list_tools.failed"),
        (SERVER_ITEMS[WebSearchCall][1], "web_search_call.in_progress"),  # OpenAI defines no event for the failure
        (SERVER_ITEMS[FileSearchCall][1], "file_search_call.in_progress"),
        (SERVER_ITEMS[CodeInterpreterCall][1], "code_interpreter_call_code.done"),
        (SERVER_ITEMS[ImageGenerationCall][1], "image_generation_call.in_progress"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_a_failed_item_never_emits_completed(item: ServerItem, last: str) -> None:
    assert event_names(run_item(item, item))[-2:] == [last, "output_item.done"]


@pytest.mark.parametrize("item", ADDED_ITEMS, ids=lambda item: type(item).__name__)
@pytest.mark.shows("E.6")
def test_a_complete_item_emits_added_and_done_together(item: Any) -> None:
    added, done = emit_checked([ItemAdded(item)])
    assert (added["type"], done["type"]) == (ADDED, DONE)
    assert added["item"] == done["item"]
    assert done["item"]["id"] == f"{PREFIXES.get(type(item), 'item')}_0"


def test_an_added_output_is_completed_and_an_approval_request_has_no_status() -> None:
    _, done = emit_checked([ItemAdded(FunctionCallOutput(call_id="call_1", output="42"))])
    assert done["item"]["status"] == "completed"
    _, request = emit_checked([ItemAdded(McpApprovalRequest(server_label="s", name="t", arguments="{}"))])
    assert request["item"].keys() == {"type", "id", "server_label", "name", "arguments"}


# ---- initial and truncated forms


INITIAL: dict[type, dict[str, Any]] = {
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
        "outputs": [],
    },
    ImageGenerationCall: {
        "type": "image_generation_call", "id": "x", "status": "in_progress", "size": "1024x1024",
    },
    ShellCallOutput: {
        "type": "shell_call_output", "id": "x", "status": "in_progress", "call_id": "", "output": [],
        "max_output_length": None,
    },
    Compaction: {"type": "compaction", "id": "x", "encrypted_content": ""},
}  # fmt: skip
TRUNCATED: dict[type, dict[str, Any]] = {
    McpCall: {"status": "incomplete", "arguments": '{"a":1}'},
    McpListTools: {"error": NOT_LISTED},
    WebSearchCall: {"status": "incomplete"},
    FileSearchCall: {"status": "incomplete"},
    CodeInterpreterCall: {"status": "incomplete", "code": "1+1"},
    ImageGenerationCall: {"status": "failed", "result": None},
    ShellCallOutput: {"status": "incomplete"},
    Compaction: {},
}


def test_every_kind_of_server_item_is_covered() -> None:
    assert SERVER_ITEM_KINDS.keys() == INITIAL.keys() == TRUNCATED.keys() == SERVER_ITEMS.keys()


@pytest.mark.parametrize("kind", INITIAL, ids=lambda kind: kind.__name__)
def test_an_item_is_added_without_its_results(kind: type) -> None:
    assert json.loads(msgspec.json.encode(to_added_item(SERVER_ITEMS[kind][0], "x"))) == INITIAL[kind]
    (added,) = [
        event
        for event in emit_stream([ServerItemStarted(5, SERVER_ITEMS[kind][0])], CUT)
        if isinstance(event, OutputItemAdded)
    ]
    assert added.item == to_added_item(SERVER_ITEMS[kind][0], f"{PREFIXES[kind]}_0")


def test_search_results_are_absent_from_the_added_item() -> None:
    found = WebSearchCall(
        status="completed", action=SearchAction(), results=[WebSearchResult(url="https://a.example/")]
    )
    assert to_added_item(found, "x").results is UNSET


@pytest.mark.parametrize("kind", INITIAL, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.status)
def test_an_item_open_at_the_end_is_truncated(kind: type, ending: ResponseEnding) -> None:
    events = emit_checked([ServerItemStarted(5, SERVER_ITEMS[kind][0])], ending)
    assert events[-1]["type"] == DONE
    assert events[-1]["item"] == INITIAL[kind] | TRUNCATED[kind] | {"id": f"{PREFIXES[kind]}_0"}
    assert not any(event["type"].endswith(".completed") for event in events)


@pytest.mark.parametrize(
    "item", [item for items in SERVER_ITEMS.values() for item in items], ids=lambda i: type(i).__name__
)
def test_truncating_an_item_twice_changes_nothing(item: ServerItem) -> None:
    cut = truncate_item(item)
    assert truncate_item(cut) == cut
    assert initial_view(cut) == initial_view(item)


@pytest.mark.shows("E.6")
def test_missing_fields_are_omitted_instead_of_null() -> None:
    """The AI SDK rejects null where it expects the field to be absent."""
    listed = run_item(SERVER_ITEMS[McpListTools][0], SERVER_ITEMS[McpListTools][0])[-1]["item"]
    assert "error" not in listed
    assert listed["tools"] == [
        {"name": "t", "input_schema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    ]


def test_an_item_without_a_status_becomes_completed_or_failed() -> None:
    call = McpCall(server_label="s", name="t", arguments="{}")
    assert call.status is UNSET
    assert run_item(call, call)[-1]["item"]["status"] == "completed"
    failed = msgspec.structs.replace(call, error=SERVER_ITEMS[McpCall][1].error)  # type: ignore[union-attr]  # an McpCall
    assert run_item(call, failed)[-1]["item"]["status"] == "failed"


# ---- stages


def test_an_unknown_stage_emits_no_event() -> None:
    item = SERVER_ITEMS[WebSearchCall][0]
    assert event_names(run_item(item, item, "generating", "nonsense")) == event_names(run_item(item, item))


@pytest.mark.parametrize("kind", SERVER_ITEM_KINDS, ids=lambda kind: kind.__name__)
def test_a_packed_log_preserves_every_emitted_stage(kind: type) -> None:
    emitter, item = make_recording_emitter(make_response()), SERVER_ITEMS[kind][0]
    stages = [Progress(5, stage) for stage in SERVER_ITEM_KINDS[kind].stages]
    emit_stream([ServerItemStarted(5, item), *stages, ServerItemDone(5, item)], emitter=emitter)
    assert [entry for entry in repack_log(emitter) if isinstance(entry, Progress)] == stages


def test_a_preview_of_an_image_is_emitted_with_its_options() -> None:
    image = ImageGenerationCall(status="completed", result="aW1hZ2U=")
    options = {"size": "1024x1024", "quality": "low", "background": "opaque", "output_format": "png"}
    preview = ImagePreview(0, 2, "cHJldmlldw==", *options.values())
    events = emit_checked([ServerItemStarted(0, image), preview, ServerItemDone(0, image)])
    [shown] = [event for event in events if event["type"] == "response.image_generation_call.partial_image"]
    assert shown.items() >= {"partial_image_index": 2, "partial_image_b64": "cHJldmlldw==", **options}.items()
