"""MCP client of the server. The mcp package is imported, and connections are opened, on demand."""

from collections.abc import Sequence
from importlib.util import find_spec

from msgspec import UNSET, UnsetType

from antiphon.config.tool_settings import McpApprovalMode
from antiphon.egress import EgressClient
from antiphon.errors import StartupError, UnsupportedParameter
from antiphon.protocol.types.tools import ApprovalRules, McpTool
from antiphon.tools.mcp.response_tools import McpTools
from antiphon.tools.mcp.servers import McpSettings, check_declaration
from antiphon.tools.mcp.session_pool import McpSessionPool

_INSTALL = "MCP servers need the extra mcp: pip install 'antiphon[mcp]'"


class McpClient:
    """Checks declarations of MCP servers and creates the tools of a response."""

    def __init__(self, settings: McpSettings, egress: EgressClient) -> None:
        self.settings = settings
        self._egress = egress
        self._installed = find_spec("mcp") is not None
        if settings.servers and not self._installed:
            raise StartupError(f"{_INSTALL}.")
        self._sessions = McpSessionPool(settings, egress)

    def check(self, declared: McpTool, param: str) -> None:
        """Check a declaration without I/O. Raises a BadRequest that names the field."""
        check_declaration(declared, param, self.settings, self._egress)
        if not self._installed:
            raise UnsupportedParameter(f"{_INSTALL} (by the operator of this server).", param=param)

    @property
    def labels(self) -> list[str]:
        """The labels of the operator's servers."""
        return sorted(self.settings.servers)

    def get_approval(self, declared: McpTool) -> McpApprovalMode | ApprovalRules:
        """Return the approval rule: the operator's `always`, else the request's rule, else the operator's default."""
        spec = self.settings.servers.get(declared.server_label) if declared.server_url is UNSET else None
        configured = spec.require_approval if spec is not None else None
        if configured == "always" or declared.require_approval is UNSET:
            return configured or self.settings.require_approval
        return declared.require_approval

    def get_description(self, declared: McpTool) -> str | UnsetType:
        """Return the description of the server for the model: the request's, or else the operator's."""
        spec = self.settings.servers.get(declared.server_label) if declared.server_url is UNSET else None
        if declared.server_description is not UNSET or spec is None or spec.description is None:
            return declared.server_description
        return spec.description

    def begin(self, tenant: str, declared: Sequence[McpTool]) -> McpTools:
        return McpTools(tenant, {tool.server_label: tool for tool in declared}, self.settings, self._sessions)

    async def close(self) -> None:
        await self._sessions.close()
