"""What clients sent for their MCP servers, of responses that wait in the queue: in memory alone, never in the store.

A response that another server takes up has none of it, and neither has one whose server was restarted.
"""

from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.tools import Credentials, McpTool

MOST = 10_000  # responses; beyond, the oldest are forgotten


class Entrusted:
    def __init__(self) -> None:
        self._held: dict[str, dict[str, Credentials]] = {}

    def hold(self, response_id: str, request: CreateResponse) -> None:
        given = {tool.server_label: tool.credentials for tool in _servers(request) if _is_secret(tool.credentials)}
        if given:
            self._held[response_id] = given
            if len(self._held) > MOST:
                del self._held[next(iter(self._held))]

    def give_back(self, response_id: str, request: CreateResponse) -> None:
        """To the same request, as it comes from the store. Once."""
        given = self._held.pop(response_id, {})
        for tool in _servers(request):
            if tool.server_label in given:
                tool.entrust(given[tool.server_label])


def _servers(request: CreateResponse) -> list[McpTool]:
    return [tool for tool in request.tools if isinstance(tool, McpTool)]


def _is_secret(credentials: Credentials) -> bool:
    return bool(credentials.headers or credentials.authorization)
