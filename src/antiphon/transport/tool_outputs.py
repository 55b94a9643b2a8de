"""POST /v1/responses/{id}/tool_outputs: what a client's tool gave, for a response that waits for it.

The answer says only that the output was taken; what the model makes of it is told where the response is.
"""

from msgspec.structs import replace

from antiphon.limits import Limits
from antiphon.protocol.bodies.tool_outputs import SubmitToolOutput, ToolOutputTaken, decode_tool_output
from antiphon.service.persistence.stored_responses import Stored
from antiphon.service.tool_loop.tool_outputs import ToolOutputs
from antiphon.transport.decoding import decoded
from antiphon.transport.http import Request, Route


class ToolOutputsEndpoint:
    def __init__(self, service: ToolOutputs, stored: Stored, limits: Limits, max_bytes: int) -> None:
        self._service = service
        self._stored = stored
        self._limits = replace(limits, body_bytes=min(limits.body_bytes, max_bytes))

    def route(self) -> Route:
        return Route(
            method="POST",
            path="/v1/responses/{response_id}/tool_outputs",
            endpoint=self.submit,
            summary="Submit the output of a tool",
            description="For a response that was created with `wait_for_tool_outputs` and pauses at calls of the "
            "client's own tools: it goes on, in the same stream, when every pending call has its output.",
            takes=SubmitToolOutput,
            example={"tool_call_id": "call_1", "output": [{"type": "output_text", "text": "22 °C, sunny"}]},
            gives=ToolOutputTaken,
            errors=(400, 404, 413, 415, 503),
        )

    async def submit(self, request: Request) -> None:
        response_id = request.params["response_id"]
        self._stored.check(response_id)
        asked = await decoded(await request.read_body(self._limits), decode_tool_output, self._limits)
        request.ignored = asked.ignored
        await request.reply(200, await self._service.submit(request.tenant, response_id, asked))
