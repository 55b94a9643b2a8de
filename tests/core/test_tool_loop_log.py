"""The log of a complete tool loop: tools are listed, an approved call is run, two turns with parallel calls follow, and
the last item requests another approval. `EXPECTED` lists every event that clients receive.
"""

import json
from hashlib import sha256

import msgspec
import pytest

from antiphon.core.deltas import (
    Break,
    CallDelta,
    CallDone,
    CallStarted,
    Citation,
    Delta,
    ItemAdded,
    Progress,
    ReasoningDelta,
    ServerItemDone,
    ServerItemStarted,
    Text,
    TurnEnded,
)
from antiphon.core.prompt import TokenCounts
from antiphon.core.replay import VERSION, Replay, decode_entries, encode_entries, pack, reset_response, unpack
from antiphon.core.usage import usage_from_counts
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.items import (
    McpApprovalRequest,
    McpCall,
    McpListedTool,
    McpListTools,
    McpProtocolError,
    SearchAction,
    Source,
    WebSearchCall,
)
from antiphon.protocol.types.parts import UrlCitation
from antiphon.protocol.types.response import Response
from tests.core.emitter.streams import (
    ENDINGS,
    emit_unfinished,
    encode_sse,
    get_log_entries,
    make_recording_emitter,
    round_trip_json,
)
from tests.oracles.fold import fold_events
from tests.oracles.responses import accumulate, check_event, check_response

EVENTS_SHA256 = (
    "9ccd2f1d0d2a997f6ad8597c2d824ffc306f64d49c84c9fa4ba14b58abb8b684"  # of the events; see test_packed_log.py
)
TURNS = [
    TokenCounts(input_tokens=50, cached_tokens=8, output_tokens=20),
    TokenCounts(input_tokens=100, output_tokens=9),
]

TOOL = McpListedTool(name="add", input_schema={"type": "object", "properties": {"a": {"type": "integer"}}})
LISTED = McpListTools(server_label="math", tools=[TOOL])
UNLISTED = McpListTools(server_label="down", tools=[], error="The MCP server 'down' does not answer.")
APPROVED = McpCall(
    server_label="math", name="wipe", arguments="{}", output="gone", status="completed", approval_request_id="mcpr_9"
)
ADD_CALL = McpCall(server_label="math", name="add", arguments='{"a":1}', output="42", status="completed")
FAILED_CALL = McpCall(
    server_label="math",
    name="add",
    arguments="{",
    error=McpProtocolError(code=-32602, message="Not JSON."),
    status="failed",
)
SEARCH_STARTED = SearchAction(query="sky", queries=["sky"])
SEARCH_DONE = SearchAction(query="sky", queries=["sky"], sources=[Source(url="https://sky.example/")])

BEFORE_FIRST_TURN: list[Delta] = [
    ServerItemStarted(0, LISTED),
    ServerItemStarted(1, UNLISTED),
    ServerItemDone(1, UNLISTED),
    ServerItemDone(0, LISTED),
    CallStarted(2, "wipe", "mcp", "math", "mcpr_9"),
    CallDelta(2, "{}"),
    CallDone(2),
    ServerItemDone(2, APPROVED),
]
FIRST_TURN: list[Delta] = [
    ReasoningDelta("I must "),
    ReasoningDelta("add."),
    Break("commentary"),
    Text("Let me see."),
    CallStarted(3, "add", "mcp", "math"),
    CallStarted(4, "add", "mcp", "math"),
    CallDelta(3, '{"a"'),
    CallDelta(4, "{"),
    CallDelta(3, ":1}"),
    CallDone(3),
    CallDone(4),
    TurnEnded(TURNS[0]),
    ServerItemStarted(5, WebSearchCall(status="in_progress", action=SEARCH_STARTED)),
    Progress(5, "searching"),
    ServerItemDone(4, FAILED_CALL, "Not JSON."),
    ServerItemDone(5, WebSearchCall(status="completed", action=SEARCH_DONE), "1: The sky is blue."),
    ServerItemDone(3, ADD_CALL),
]
SECOND_TURN: list[Delta] = [
    Text("Blue"), Citation(UrlCitation(url="https://sky.example/", title="Sky", start_index=0, end_index=4)),
    Text(", and 42."),
    TurnEnded(TURNS[1]),
    ItemAdded(McpApprovalRequest(server_label="math", name="wipe", arguments="{}")),
]  # fmt: skip

EXPECTED = r"""
- created
- queued
- in_progress
0 output_item.added mcpl
0 mcp_list_tools.in_progress
1 output_item.added mcpl
1 mcp_list_tools.in_progress
1 mcp_list_tools.failed
1 output_item.done mcpl "The MCP server 'down' does not answer."
0 mcp_list_tools.completed
0 output_item.done mcpl
2 output_item.added mcp "in_progress"
2 mcp_call.in_progress
2 mcp_call_arguments.delta "{}"
2 mcp_call_arguments.done "{}"
2 mcp_call.completed
2 output_item.done mcp "completed"
3 output_item.added rs
3 content_part.added
3 reasoning_text.delta "I must "
3 reasoning_text.delta "add."
3 reasoning_text.done "I must add."
3 content_part.done
3 output_item.done rs "completed"
4 output_item.added msg "in_progress"
4 content_part.added
4 output_text.delta "Let me see."
4 output_text.done "Let me see."
4 content_part.done
4 output_item.done msg "completed"
5 output_item.added mcp "in_progress"
5 mcp_call.in_progress
6 output_item.added mcp "in_progress"
6 mcp_call.in_progress
5 mcp_call_arguments.delta "{\"a\""
6 mcp_call_arguments.delta "{"
5 mcp_call_arguments.delta ":1}"
5 mcp_call_arguments.done "{\"a\":1}"
6 mcp_call_arguments.done "{"
7 output_item.added ws "in_progress"
7 web_search_call.in_progress
7 web_search_call.searching
6 mcp_call.failed
6 output_item.done mcp "failed" {"type": "mcp_protocol_error", "code": -32602, "message": "Not JSON."}
7 web_search_call.completed
7 output_item.done ws "completed"
5 mcp_call.completed
5 output_item.done mcp "completed"
8 output_item.added msg "in_progress"
8 content_part.added
8 output_text.delta "Blue"
8 output_text.annotation.added
8 output_text.delta ", and 42."
8 output_text.done "Blue, and 42."
8 content_part.done
8 output_item.done msg "completed"
9 output_item.added mcpr
9 output_item.done mcpr
- completed
"""


def emit_tool_loop() -> tuple[list[Event], Response, list]:  # type: ignore[type-arg]  # entries
    response = Response(id="resp_019a8b7c6d5e7f008000000000000000", created_at=1, model="m", background=True)
    emitter = make_recording_emitter(msgspec.structs.replace(response, status="queued"), include_obfuscation=True)
    events = emit_unfinished(emitter, [BEFORE_FIRST_TURN, *[[delta] for delta in FIRST_TURN], SECOND_TURN])
    events += emitter.finish(ENDINGS[0], usage_from_counts(TURNS), 9)
    return events, emitter.response, get_log_entries(emitter)


def format_event(event: Event) -> str:
    fields = json.loads(msgspec.json.encode(event))
    values = [fields[name] for name in ("delta", "text", "arguments") if name in fields]
    item = fields.get("item", {})
    kind = [item["id"].partition("_")[0]] if item else []
    values += [item[name] for name in ("status", "error") if item.get(name) is not None]
    position = str(fields.get("output_index", "-"))
    return " ".join([position, fields["type"].removeprefix("response."), *kind, *map(json.dumps, values)])


@pytest.mark.shows("E.3", "E.6")
def test_a_complete_tool_loop_emits_the_expected_events() -> None:
    events, response, _ = emit_tool_loop()
    assert "\n".join(map(format_event, events)) == EXPECTED.strip()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert fold_events(events) == response


@pytest.mark.shows("A.23", "E.6")
def test_every_event_is_valid_for_the_sdk_and_its_accumulators() -> None:
    events = [json.loads(msgspec.json.encode(event)) for event in emit_tool_loop()[0]]
    for event in events:
        check_event(event)
    check_response(events[-1]["response"])
    final = accumulate(events)
    assert [item.type for item in final.output] == [
        "mcp_list_tools", "mcp_list_tools", "mcp_call", "reasoning", "message", "mcp_call", "mcp_call",
        "web_search_call", "message", "mcp_approval_request",
    ]  # fmt: skip
    assert final.output_text == "Let me see.Blue, and 42."


def test_the_log_and_the_packed_log_replay_the_loop_byte_for_byte() -> None:
    events, response, entries = emit_tool_loop()
    stored = round_trip_json(response)
    body = encode(response)
    for again in (decode_entries(encode_entries(entries)), unpack(pack([entries], response, body), body)):
        replay = Replay(reset_response(stored), include_obfuscation=True)
        assert encode_sse(replay.open() + replay.feed(again)) == encode_sse(events)


@pytest.mark.parametrize("length", range(len(BEFORE_FIRST_TURN) + len(FIRST_TURN) + len(SECOND_TURN) + 1))
def test_a_crash_after_any_delta_leaves_a_closed_and_valid_stream(length: int) -> None:
    entries = emit_tool_loop()[2][: length + 1]
    replay = Replay(reset_response(emit_tool_loop()[1]), include_obfuscation=False)
    events = replay.open() + replay.feed(entries) + replay.emitter.finish(ENDINGS[2], usage_from_counts(TURNS[:1]), 9)
    plain = [json.loads(msgspec.json.encode(event)) for event in events]
    for event in plain:
        check_event(event)
    accumulate(plain)
    begun = [event["output_index"] for event in plain if event["type"] == "response.output_item.added"]
    done = [event["output_index"] for event in plain if event["type"] == "response.output_item.done"]
    assert sorted(done) == begun == [*range(len(begun))]


def test_the_events_of_the_loop_do_not_change_within_a_version() -> None:
    assert (VERSION, sha256(encode_sse(emit_tool_loop()[0])).hexdigest()) == (3, EVENTS_SHA256)


@pytest.mark.shows("A7.6", "A7.7")
def test_usage_counts_both_turns_and_the_tool_output_between_them() -> None:
    totals = emit_tool_loop()[1].usage
    assert totals is not None
    assert (totals.input_tokens, totals.output_tokens, totals.total_tokens) == (150, 29, 179)
    assert totals.input_tokens_details.cached_tokens_per_turn == [8, 0]
    assert totals.output_tokens_details.tool_output_tokens_per_turn == [0, 30]
