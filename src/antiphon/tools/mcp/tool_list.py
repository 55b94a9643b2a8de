"""What a server lists → tools that can be offered: of bounded size, with schemas that are fit to be looked at.

Names and descriptions are left as they are; what a model is offered is made of them elsewhere.
"""

import logging
from collections.abc import Sequence
from typing import Any, Final

from msgspec import UNSET

from antiphon.errors import InvalidValue
from antiphon.limits import Limits
from antiphon.protocol.schemas.vetting import Vetting
from antiphon.protocol.types.builtin_items import McpListedTool

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


def _listed(tool: Json) -> McpListedTool:
    description = tool.get("description")
    return McpListedTool(
        name=tool["name"],
        input_schema=tool["inputSchema"],
        description=UNSET if description is None else description[:_DESCRIPTION],
        annotations=tool.get("annotations") or UNSET,
    )
