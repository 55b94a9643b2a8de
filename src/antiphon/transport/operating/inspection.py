"""/v1/antiphon/responses/{id}/…: how a response came about. Extensions, made for a page."""

from msgspec import Struct

from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.operations.inspection import RenderedPrompt, ResponseTiming, ResponseTree
from antiphon.service.access.api_keys import ADMIN
from antiphon.service.operations.inspection import Inspection
from antiphon.transport.http.request import Request
from antiphon.transport.middleware.routing import READ_ERRORS, Route

_PATH = "/v1/antiphon/responses/{response_id}"


class InspectionEndpoint(Struct, frozen=True):
    inspection: Inspection

    @Route("GET", f"{_PATH}/tree", gives=ResponseTree, errors=READ_ERRORS)
    async def show_tree(self, request: Request) -> None:
        """List the responses that one is connected with. Those that it continues, those of their conversation, and all
        that continue any of these, without contents, oldest first. An extension.
        """
        tree = await self.inspection.find_tree(request.tenant, request.params["response_id"])
        await request.reply(200, encode(tree))

    @Route("GET", f"{_PATH}/timing", gives=ResponseTiming, errors=READ_ERRORS)
    async def show_timing(self, request: Request) -> None:
        """Show where the time of a response went. Queue, engines that were tried, first token, tool calls and writes to
        the store, without contents, if this process has a trace of it (`--keep-traces`). An extension.
        """
        timing = await self.inspection.show_timing(request.tenant, request.params["response_id"])
        await request.reply(200, encode(timing))

    @Route("GET", f"{_PATH}/prompt", gives=RenderedPrompt, needs=ADMIN, errors=(*READ_ERRORS, 429))
    async def show_prompt(self, request: Request) -> None:
        """Show the prompt of a response. That of its first model call, rendered again from the stored history, with the
        prefix that the engine had cached. An extension.
        """
        prompt = await self.inspection.render_prompt(request.tenant, request.params["response_id"])
        await request.reply(200, encode(prompt))
