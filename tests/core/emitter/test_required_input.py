"""`required_input`: stubs of the outputs and approvals that a response waits for.

Covers `core/emitter/response_views.py`.
"""

import pytest

from antiphon.core.emitter.response_views import IMAGES, JSON_MARKERS, has_hidden_fields, required_input
from antiphon.protocol.types.items import (
    CustomToolCall,
    FunctionCall,
    FunctionCallOutput,
    McpApprovalRequest,
    Message,
    OutputItem,
    ToolSearchCall,
)
from antiphon.protocol.types.parts import OutputText

CALL = FunctionCall(id="fc_1", call_id="call_1", name="look", arguments="{}")
MESSAGE = Message(id="msg_1", role="assistant", content=[OutputText(text="hm")])


@pytest.mark.parametrize(
    ("item", "stub"),
    [
        (CALL, {"type": "function_call_output", "call_id": "call_1", "name": "look"}),
        (
            CustomToolCall(id="ctc_1", call_id="call_2", name="sql", input="x"),
            {"type": "custom_tool_call_output", "call_id": "call_2"},
        ),
        (
            ToolSearchCall(id="tsc_1", call_id="call_3", arguments={}, execution="client", status="completed"),
            {"type": "tool_search_output", "call_id": "call_3", "execution": "client"},
        ),
        (
            McpApprovalRequest(id="mcpr_1", server_label="s", name="n", arguments="{}"),
            {"type": "mcp_approval_response", "approval_request_id": "mcpr_1"},
        ),
    ],
)
@pytest.mark.shows("F.10")
def test_a_pending_call_or_approval_request_gives_a_stub_of_its_output(item: OutputItem, stub: dict[str, str]) -> None:
    assert required_input([MESSAGE, item]) == [stub]


def test_an_answered_call_requires_no_input() -> None:
    assert required_input([CALL, FunctionCallOutput(id="fco_1", call_id="call_1", output="done"), MESSAGE]) == []


def test_fields_are_hidden_if_they_are_there_and_not_included() -> None:
    body = b'{"content":[{' + JSON_MARKERS[IMAGES] + b"}]}"
    assert has_hidden_fields(body, ())
    assert not has_hidden_fields(body, {IMAGES})
    assert not has_hidden_fields(b"{}", ())
