"""The log of a whole loop: tools are listed, an approved call is run, two turns with calls side by side, and at the end
a request for another approval. All that clients are told of it stands here, event by event."""

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
    Opened,
    Put,
    Ran,
    Stage,
    Text,
    Thought,
    Turned,
)
from antiphon.core.emitter.fold import fold
from antiphon.core.prompt import Counts
from antiphon.core.replay.packed_log import VERSION, pack, unpack
from antiphon.core.replay.replay import Replay, decode_entries, encode_entries, reopened
from antiphon.core.usage import usage
from antiphon.protocol.types.builtin_items import McpListedTool, McpProtocolError, SearchAction, Source
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.items import McpApprovalRequest, McpCall, McpListTools, UrlCitation, WebSearchCall
from antiphon.protocol.types.response import Response
from tests.core.emitter.streams import ENDINGS, as_stored, entries_of, recording, sent, told
from tests.oracles.responses import accumulate, check_event, check_response

SUM = "9ccd2f1d0d2a997f6ad8597c2d824ffc306f64d49c84c9fa4ba14b58abb8b684"  # of the events; see test_tape.py
TURNS = [Counts(input_tokens=50, cached_tokens=8, output_tokens=20), Counts(input_tokens=100, output_tokens=9)]

TOOL = McpListedTool(name="add", input_schema={"type": "object", "properties": {"a": {"type": "integer"}}})
LISTED = McpListTools(server_label="math", tools=[TOOL])
UNLISTED = McpListTools(server_label="down", tools=[], error="The MCP server 'down' does not answer.")
APPROVED = McpCall(
    server_label="math", name="wipe", arguments="{}", output="gone", status="completed", approval_request_id="mcpr_9"
)
SUM_OF = McpCall(server_label="math", name="add", arguments='{"a":1}', output="42", status="completed")
BAD = McpCall(
    server_label="math",
    name="add",
    arguments="{",
    error=McpProtocolError(code=-32602, message="Not JSON."),
    status="failed",
)
BEGUN = SearchAction(query="sky", queries=["sky"])
FOUND = SearchAction(query="sky", queries=["sky"], sources=[Source(url="https://sky.example/")])

STEPS: list[Delta] = [
    Opened(0, LISTED), Opened(1, UNLISTED), Ran(1, UNLISTED), Ran(0, LISTED),
    CallStarted(2, "wipe", "mcp", "math", "mcpr_9"), CallDelta(2, "{}"), CallDone(2), Ran(2, APPROVED),
]  # fmt: skip
FIRST: list[Delta] = [
    Thought("I must "), Thought("add."),
    Break("commentary"), Text("Let me see."),
    CallStarted(3, "add", "mcp", "math"), CallStarted(4, "add", "mcp", "math"),
    CallDelta(3, '{"a"'), CallDelta(4, "{"), CallDelta(3, ":1}"), CallDone(3), CallDone(4),
    Turned(TURNS[0]),
    Opened(5, WebSearchCall(status="in_progress", action=BEGUN)), Stage(5, "searching"),
    Ran(4, BAD, "Not JSON."), Ran(5, WebSearchCall(status="completed", action=FOUND), "1: The sky is blue."),
    Ran(3, SUM_OF),
]  # fmt: skip
SECOND: list[Delta] = [
    Text("Blue"), Citation(UrlCitation(url="https://sky.example/", title="Sky", start_index=0, end_index=4)),
    Text(", and 42."),
    Turned(TURNS[1]),
    Put(McpApprovalRequest(server_label="math", name="wipe", arguments="{}")),
]  # fmt: skip

TOLD = r"""
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


def emitted() -> tuple[list[Event], Response, list]:  # type: ignore[type-arg]  # entries
    response = Response(id="resp_019a8b7c6d5e7f008000000000000000", created_at=1, model="m", background=True)
    emitter = recording(msgspec.structs.replace(response, status="queued"), obfuscates=True)
    events = told(emitter, [STEPS, *[[delta] for delta in FIRST], SECOND])
    events += emitter.finish(ENDINGS[0], usage(TURNS), 9)
    return events, emitter.response, entries_of(emitter)


def line(event: Event) -> str:
    told = json.loads(msgspec.json.encode(event))
    said = [told[name] for name in ("delta", "text", "arguments") if name in told]
    item = told.get("item", {})
    kind = [item["id"].partition("_")[0]] if item else []
    said += [item[name] for name in ("status", "error") if item.get(name) is not None]
    place = str(told.get("output_index", "-"))
    return " ".join([place, told["type"].removeprefix("response."), *kind, *map(json.dumps, said)])


@pytest.mark.shows("E.3", "E.6")
def test_a_whole_loop_is_told_in_these_events() -> None:
    events, response, _ = emitted()
    assert "\n".join(map(line, events)) == TOLD.strip()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert fold(events) == response


@pytest.mark.shows("A.23", "E.6")
def test_every_event_of_it_is_valid_for_the_sdk_and_its_accumulators() -> None:
    events = [json.loads(msgspec.json.encode(event)) for event in emitted()[0]]
    for event in events:
        check_event(event)
    check_response(events[-1]["response"])
    final = accumulate(events)
    assert [item.type for item in final.output] == [
        "mcp_list_tools", "mcp_list_tools", "mcp_call", "reasoning", "message", "mcp_call", "mcp_call",
        "web_search_call", "message", "mcp_approval_request",
    ]  # fmt: skip
    assert final.output_text == "Let me see.Blue, and 42."


def test_its_log_and_its_tape_tell_it_again_byte_for_byte() -> None:
    events, response, entries = emitted()
    stored = as_stored(response)
    for again in (decode_entries(encode_entries(entries)), unpack(pack([entries], response), stored)):
        replay = Replay(reopened(stored), obfuscates=True)
        assert sent(replay.open() + replay.feed(again)) == sent(events)


@pytest.mark.parametrize("length", range(len(STEPS) + len(FIRST) + len(SECOND) + 1))
def test_wherever_a_server_dies_what_it_told_is_closed_and_valid(length: int) -> None:
    entries = emitted()[2][: length + 1]
    replay = Replay(reopened(emitted()[1]), obfuscates=False)
    events = replay.open() + replay.feed(entries) + replay.emitter.finish(ENDINGS[2], usage(TURNS[:1]), 9)
    plain = [json.loads(msgspec.json.encode(event)) for event in events]
    for event in plain:
        check_event(event)
    accumulate(plain)
    begun = [event["output_index"] for event in plain if event["type"] == "response.output_item.added"]
    done = [event["output_index"] for event in plain if event["type"] == "response.output_item.done"]
    assert sorted(done) == begun == [*range(len(begun))]


def test_its_events_do_not_change_while_the_version_stays() -> None:
    assert (VERSION, sha256(sent(emitted()[0])).hexdigest()) == (1, SUM)


@pytest.mark.shows("A7.6", "A7.7")
def test_its_usage_counts_both_turns_and_what_tools_said_between_them() -> None:
    told = emitted()[1].usage
    assert told is not None
    assert (told.input_tokens, told.output_tokens, told.total_tokens) == (150, 29, 179)
    assert told.input_tokens_details.cached_tokens_per_turn == [8, 0]
    assert told.output_tokens_details.tool_output_tokens_per_turn == [0, 30]
