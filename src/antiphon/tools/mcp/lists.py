"""What a server lists → tools that can be offered: of bounded size, with schemas that are fit to be looked at.

Names and descriptions are left as they are; what a model is offered is made of them elsewhere.
"""

import logging
from collections.abc import Sequence
from typing import Any, Final

from msgspec import UNSET

from antiphon.errors import InvalidValue
from antiphon.limits import Limits
from antiphon.protocol.builtin_items import McpListedTool
from antiphon.protocol.schemas import Vetting
from antiphon.protocol.tools import McpTool, ToolNames

log = logging.getLogger(__name__)

Json = dict[str, Any]

_DESCRIPTION: Final = 16 * 1024  # characters
_DRAFTS: Final = frozenset({"$schema", "$id"})  # which draft it is says nothing that a vetting needs


def fit(tools: Sequence[Json], label: str, limits: Limits) -> tuple[McpListedTool, ...]:
    """Those that can be offered. One whose schema is unfit is left out, with a word in the log: the others can do
    nothing about it."""
    found: dict[str, McpListedTool] = {}
    for tool in tools:
        name = tool["name"]
        if name in found or not 0 < len(name) <= limits.id_length:
            log.warning("A tool of the MCP server %.64r is left out: its name is taken, empty or too long.", label)
            continue
        try:
            Vetting(limits).vet({key: value for key, value in tool["inputSchema"].items() if key not in _DRAFTS}, name)
        except InvalidValue as error:
            log.warning("A tool of the MCP server %.64r is left out. %.300s", label, error.message)
            continue
        found[name] = _listed(tool)
    return tuple(found.values())


def allows(declared: McpTool, named: Sequence[str] | None, tool: McpListedTool) -> bool:
    """`named`: those that the operator lets anybody use; None: all."""
    if named is not None and tool.name not in named:
        return False
    allowed = declared.allowed_tools
    if allowed is None:
        return True
    if not isinstance(allowed, ToolNames):
        return tool.name in allowed
    if allowed.tool_names is not UNSET and tool.name not in allowed.tool_names:
        return False
    return allowed.read_only is UNSET or allowed.read_only == _reads_only(tool)


def _reads_only(tool: McpListedTool) -> bool:
    return tool.annotations is not UNSET and tool.annotations.get("readOnlyHint") is True


def _listed(tool: Json) -> McpListedTool:
    description = tool.get("description")
    return McpListedTool(
        name=tool["name"],
        input_schema=tool["inputSchema"],
        description=UNSET if description is None else description[:_DESCRIPTION],
        annotations=tool.get("annotations") or UNSET,
    )
