"""MCP, as a client, for as long as the server lives. Nothing is opened, nor even loaded, before it is needed."""

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from antiphon.config.mcp import Approval
from antiphon.egress import Egress
from antiphon.errors import StartupError, UnsupportedParameter
from antiphon.protocol.types.tools import ApprovalRules, McpTool
from antiphon.tools.mcp.response_tools import McpTools
from antiphon.tools.mcp.servers import check
from antiphon.tools.mcp.session_pool import Sessions, installed
from antiphon.tools.mcp.settings import McpSettings as McpSettings

_INSTALL = "MCP servers need the extra mcp: pip install 'antiphon[mcp]'"


class Mcp:
    def __init__(self, settings: McpSettings, egress: Egress) -> None:
        self._settings = settings
        self._egress = egress
        self._installed = installed()
        if settings.servers and not self._installed:
            raise StartupError(f"{_INSTALL}.")
        self._sessions = Sessions(settings, egress)

    def check(self, declared: McpTool, param: str) -> None:
        """Without IO. Raises a BadRequest that names the field."""
        check(declared, param, self._settings, self._egress)
        if not self._installed:
            raise UnsupportedParameter(f"{_INSTALL} (which is the operator's to do).", param=param)

    @property
    def labels(self) -> list[str]:
        """Of the operator's servers."""
        return sorted(self._settings.servers)

    def approval(self, declared: McpTool) -> Approval | ApprovalRules:
        """What is in force: the operator's `always`, or what the request says, or else the operator's word again."""
        spec = self._settings.servers.get(declared.server_label) if declared.server_url is UNSET else None
        word = spec.require_approval if spec is not None else None
        if word == "always" or declared.require_approval is UNSET:
            return word or self._settings.require_approval
        return declared.require_approval

    def description(self, declared: McpTool) -> str | UnsetType:
        """What the model is told of the server: the request's words, or else the operator's."""
        spec = self._settings.servers.get(declared.server_label) if declared.server_url is UNSET else None
        if declared.server_description is not UNSET or spec is None or spec.description is None:
            return declared.server_description
        return spec.description

    def begin(self, tenant: str, declared: Sequence[McpTool]) -> McpTools:
        return McpTools(tenant, {tool.server_label: tool for tool in declared}, self._settings, self._sessions)

    async def close(self) -> None:
        await self._sessions.close()
