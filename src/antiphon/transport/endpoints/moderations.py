"""POST /v1/moderations: whether texts and images are harmful, by the moderation model of the server."""

from msgspec import Struct

from antiphon.errors import NotFound
from antiphon.ids import new_dashed_id
from antiphon.limits import Limits
from antiphon.protocol.bodies.moderations import CreateModeration, ModerationList, decode_moderation, list_inputs
from antiphon.service.tool_loop.moderation import NO_MODERATOR, Moderator
from antiphon.transport.http.request import Request, read_json, run_for_client
from antiphon.transport.middleware.routing import Route


class ModerationsEndpoint(Struct, frozen=True):
    moderator: Moderator | None  # None: no moderation model is configured
    limits: Limits

    @Route("POST", "/v1/moderations", takes=CreateModeration, new_work=True)
    async def create(self, request: Request) -> ModerationList:
        """Classify texts and images. A list of texts has a result for each text, a list of parts has one result."""
        if self.moderator is None:  # before the body is read: other servers probe the path with an empty one
            raise NotFound(NO_MODERATOR)
        parsed, request.ignored = await read_json(request, decode_moderation, self.limits)
        self.moderator.check_model(parsed.model, "model")
        results = await run_for_client(request, self.moderator.judge(request.tenant, list_inputs(parsed)))
        return ModerationList(id=new_dashed_id("modr"), model=self.moderator.model, results=results)
