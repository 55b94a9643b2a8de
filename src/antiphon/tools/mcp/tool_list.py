"""The tools of an MCP server that can be offered: of limited size and with acceptable schemas.

Names and descriptions are not changed here; the names offered to a model are derived from them by the renderer.
"""

import logging
from collections.abc import Sequence
from typing import Any, Final

from msgspec import UNSET, Struct

from antiphon.errors import InvalidValue
from antiphon.limits import Limits
from antiphon.protocol.schemas.vetting import SchemaVetter
from antiphon.protocol.types.builtin_items import McpListedTool

log = logging.getLogger(__name__)

Json = dict[str, Any]

_MAX_DESCRIPTION_LENGTH: Final = 16 * 1024  # characters
_IGNORED_KEYWORDS: Final = frozenset({"$schema", "$id"})  # the draft does not matter for vetting the schema


class ToolListing(Struct, frozen=True):
    """A cached tool list."""

    tools: tuple[McpListedTool, ...]
    list_changes: int  # counter of the session at the time of the request
    requested_at: float


def select_tools(tools: Sequence[Json], label: str, limits: Limits) -> tuple[McpListedTool, ...]:
    """Return the tools that can be offered. A tool with an unacceptable schema is skipped with a log warning."""
    found: dict[str, McpListedTool] = {}
    for tool in tools:
        name = tool["name"]
        if name in found or not 0 < len(name) <= limits.id_length:
            log.warning("A tool of the MCP server %.64r is left out: its name is taken, empty or too long.", label)
            continue
        try:
            SchemaVetter(limits).vet(
                {key: value for key, value in tool["inputSchema"].items() if key not in _IGNORED_KEYWORDS}, name
            )
        except InvalidValue as error:
            log.warning("A tool of the MCP server %.64r is left out. %.300s", label, error.message)
            continue
        found[name] = _to_listed_tool(tool)
    return tuple(found.values())


def _to_listed_tool(tool: Json) -> McpListedTool:
    description = tool.get("description")
    return McpListedTool(
        name=tool["name"],
        input_schema=tool["inputSchema"],
        description=UNSET if description is None else description[:_MAX_DESCRIPTION_LENGTH],
        annotations=tool.get("annotations") or UNSET,
    )
