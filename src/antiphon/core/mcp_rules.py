"""Rules of an MCP tool declaration: which tools the model may call, and which need the client's approval first."""

from msgspec import UNSET

from antiphon.protocol.types.items import McpListedTool
from antiphon.protocol.types.tools import ApprovalRules, McpTool, ToolNames


def is_allowed(server: McpTool, tool: McpListedTool) -> bool:
    """Check `allowed_tools`. An empty filter allows every tool."""
    if (allowed := server.allowed_tools) is None:
        return True
    if isinstance(allowed, ToolNames):
        return _is_empty(allowed) or _matches(allowed, tool)
    return tool.name in allowed


def needs_approval(server: McpTool, tool: McpListedTool) -> bool:
    """Check `require_approval`. A tool that no rule matches needs approval, unless there is only an `always` rule."""
    rules = server.require_approval
    if not isinstance(rules, ApprovalRules):
        return rules == "always"
    if rules.always is not UNSET and _matches(rules.always, tool):
        return True
    if rules.never is not UNSET:
        return not _matches(rules.never, tool)
    return rules.always is UNSET


def _is_empty(names: ToolNames) -> bool:
    return names.tool_names is UNSET and names.read_only is UNSET


def _matches(names: ToolNames, tool: McpListedTool) -> bool:
    """Check that a tool meets every condition of a filter. An empty filter matches nothing."""
    if names.tool_names is not UNSET and tool.name not in names.tool_names:
        return False
    is_read_only = tool.annotations is not UNSET and tool.annotations.get("readOnlyHint") is True
    if names.read_only is not UNSET and names.read_only != is_read_only:
        return False
    return not _is_empty(names)
