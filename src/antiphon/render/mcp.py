"""What a client lets a model call of an MCP server, and what it wants to be asked about first."""

from msgspec import UNSET

from antiphon.protocol.builtin_items import McpListedTool
from antiphon.protocol.items import McpListTools
from antiphon.protocol.tools import ApprovalRules, McpTool, ToolNames


def listed(server: McpTool, item: McpListTools) -> list[McpListedTool]:
    """Those that the declaration allows; of two with one name the first."""
    allowed = server.allowed_tools
    unique = {tool.name: tool for tool in reversed(item.tools)}
    tools = [tool for tool in item.tools if unique[tool.name] is tool]
    if allowed is None:
        return tools
    if isinstance(allowed, ToolNames):
        return [tool for tool in tools if _matches(allowed, tool)]
    return [tool for tool in tools if tool.name in allowed]


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


def _matches(names: ToolNames, tool: McpListedTool) -> bool:
    """By every word of it: an empty filter is about nothing."""
    by_name = names.tool_names is not UNSET
    by_effect = names.read_only is not UNSET
    if by_name and tool.name not in (names.tool_names or ()):
        return False
    if by_effect and names.read_only != _reads_only(tool):
        return False
    return by_name or by_effect


def _reads_only(tool: McpListedTool) -> bool:
    return tool.annotations is not UNSET and tool.annotations.get("readOnlyHint") is True
