"""MCP credentials of queued responses: held in memory only, never in the store.

A queued response that is taken over by another server, or whose server restarts, runs without them.
"""

from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.tools import Credentials, McpTool

MAX_RESPONSES = 10_000  # responses with credentials; the oldest are dropped above this


class CredentialCache:
    """MCP credentials of queued responses, in memory."""

    def __init__(self) -> None:
        self._credentials: dict[str, dict[str, Credentials]] = {}

    def store(self, response_id: str, request: CreateResponse) -> None:
        credentials = {
            tool.server_label: tool.credentials for tool in _mcp_tools(request) if _is_secret(tool.credentials)
        }
        if credentials:
            self._credentials[response_id] = credentials
            if len(self._credentials) > MAX_RESPONSES:
                del self._credentials[next(iter(self._credentials))]

    def restore(self, response_id: str, request: CreateResponse) -> None:
        """Put the credentials back into the same request as loaded from the store, once."""
        credentials = self._credentials.pop(response_id, {})
        for tool in _mcp_tools(request):
            if tool.server_label in credentials:
                tool.set_credentials(credentials[tool.server_label])


def _mcp_tools(request: CreateResponse) -> list[McpTool]:
    return [tool for tool in request.tools if isinstance(tool, McpTool)]


def _is_secret(credentials: Credentials) -> bool:
    return bool(credentials.headers or credentials.authorization)
