"""What a client lets a model call of an MCP server, and what it wants to be asked about first."""

from msgspec import UNSET

from antiphon.protocol.types.builtin_items import McpListedTool
from antiphon.protocol.types.tools import ApprovalRules, McpTool, ToolNames


def allows(server: McpTool, tool: McpListedTool) -> bool:
    """A filter without a word keeps nothing out."""
    allowed = server.allowed_tools
    if allowed is None:
        return True
    if isinstance(allowed, ToolNames):
        return _is_empty(allowed) or _matches(allowed, tool)
    return tool.name in allowed


def needs_approval(server: McpTool, tool: McpListedTool) -> bool:
    """Who is named by neither rule needs it, unless the rules only say who does."""
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
    """By every word of it: an empty one is about nothing."""
    if names.tool_names is not UNSET and tool.name not in names.tool_names:
        return False
    if names.read_only is not UNSET and names.read_only != _reads_only(tool):
        return False
    return not _is_empty(names)


def _reads_only(tool: McpListedTool) -> bool:
    return tool.annotations is not UNSET and tool.annotations.get("readOnlyHint") is True
