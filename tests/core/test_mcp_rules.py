"""Which tools of an MCP server need the approval of the client."""

import pytest
from msgspec import UNSET, UnsetType

from antiphon.core.mcp_rules import needs_approval
from antiphon.protocol.types.items import McpListedTool
from antiphon.protocol.types.tools import ApprovalRules, McpTool, ToolNames

ADD, OTHER = ToolNames(tool_names=["add"]), ToolNames(tool_names=["other"])


@pytest.mark.parametrize(
    ("always", "never", "expected"),
    [
        (UNSET, UNSET, True),
        (ADD, UNSET, True),
        (OTHER, UNSET, False),
        (UNSET, ADD, False),
        (UNSET, OTHER, True),
        (ADD, ADD, True),
        (OTHER, ADD, False),
        (OTHER, OTHER, True),
    ],
)
def test_a_tool_needs_approval_by_the_rule_that_matches_it(
    always: ToolNames | UnsetType, never: ToolNames | UnsetType, expected: bool
) -> None:
    server = McpTool(server_label="s", require_approval=ApprovalRules(always=always, never=never))
    assert needs_approval(server, McpListedTool(name="add", input_schema={})) is expected
