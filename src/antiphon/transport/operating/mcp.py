"""/v1/antiphon/mcp/…: try an MCP server without a model. Extensions, made for a page."""

from msgspec import Struct

from antiphon.limits import Limits
from antiphon.protocol.bodies.mcp import decode_call, decode_listing
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.items import McpCall
from antiphon.protocol.types.operations.mcp import CallMcpTool, ListMcpTools, McpServerTools
from antiphon.service.operations.mcp_trials import McpTrials
from antiphon.transport.http.request import Request, read_json, run_for_client
from antiphon.transport.middleware.routing import Route

_ERRORS = (413, 415, 424)


class McpEndpoint(Struct, frozen=True):
    trials: McpTrials
    limits: Limits

    @Route("POST", "/v1/antiphon/mcp/tools", takes=ListMcpTools, gives=McpServerTools, new_work=True, errors=_ERRORS)
    async def list_tools(self, request: Request) -> None:
        """List the tools of an MCP server. Those that a response that declares `server` could call, which of them it
        would ask about, and the limits of calls. An extension.
        """
        body, request.ignored = await read_json(request, decode_listing, self.limits)
        listed = await run_for_client(request, self.trials.list_tools(request.tenant, body.server))
        await request.reply(200, encode(listed))

    @Route("POST", "/v1/antiphon/mcp/call", takes=CallMcpTool, gives=McpCall, new_work=True, errors=_ERRORS)
    async def call(self, request: Request) -> None:
        """Call a tool of an MCP server. At most once; the reply is the item that a response would have, with the output
        or the error of the call. A tool that needs an approval is called if `approve` is true. An extension.
        """
        body, request.ignored = await read_json(request, decode_call, self.limits)
        await request.reply(200, encode(await run_for_client(request, self.trials.call(request.tenant, body))))
