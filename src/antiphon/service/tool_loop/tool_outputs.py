"""Responses that wait for their client's tools: they pause at the calls and continue in the same stream.

The outputs arrive by another request, at any server. The awaited calls and the received outputs are in the store, so
both survive the server that waits. It is woken by a notification and also polls, because notifications may get lost. A
client that sees a call before the turn has ended may send its output early; such a request is held for a while.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence

import msgspec
from msgspec import Struct, field

from antiphon.agent.tool_loop import ClientCall, ClientOutput
from antiphon.config.areas import ToolSettings
from antiphon.errors import AntiphonError, NotPending, NotWaiting, ServerRestarted, ToolOutputTimeout
from antiphon.ids import parse_response_id, quote_id
from antiphon.protocol.bodies.tool_outputs import SubmittedToolOutput, ToolOutputTaken
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.items import CustomToolCall, CustomToolCallOutput, FunctionCallOutput
from antiphon.protocol.types.parts import ToolOutputPart as Part
from antiphon.protocol.types.request import CreateResponse
from antiphon.render.content import AttachmentLookup, ContentRenderer
from antiphon.service.attachments.attachments import Attachments
from antiphon.service.persistence.live_updates import Notifications, retry_unavailable
from antiphon.service.persistence.rows import restore_request, unknown_response_error
from antiphon.stores.base import OutputSubmission, OwnershipLost
from antiphon.stores.live.base import LiveLog
from antiphon.stores.sql.store import Store

log = logging.getLogger(__name__)

_POLL_SECONDS = 1.0  # initial interval of polls without a notification; it grows by half each time
_MAX_POLL_SECONDS = 5.0
_RETRY_SECONDS = 30.0  # for retries while the store does not respond
_EARLY_SECONDS = 30.0  # for which an early output is held
_MIN_POLL_SECONDS = 0.02  # between two polls, however many notifications arrive

_IMAGE_INPUT = frozenset({"input_image"})  # assumed, since the capabilities of the model are not known here

_output_decoder = msgspec.json.Decoder(str | list[Part])


class ToolOutputs(Struct, frozen=True, eq=False):
    """Waits for tool outputs and accepts submitted ones."""

    _store: Store
    _live: LiveLog
    _notifications: Notifications
    _settings: ToolSettings
    _attachments: Attachments = field(default_factory=Attachments)

    def should_wait(self, request: CreateResponse, stored: bool) -> bool:
        """Return whether a response to this request waits; not if no client could learn of its calls before the end."""
        if not (stored and (request.stream or request.background)):
            return False
        requested = request.wait_for_tool_outputs
        return self._settings.wait_for_tool_outputs if requested is None else requested

    async def wait(self, tenant: str, response_id: str, fence: int, calls: Sequence[ClientCall]) -> list[ClientOutput]:
        """Return the outputs of these calls, in order, once all of them are there.

        Raises ToolOutputTimeout, ServerRestarted if another server owns the response, and Unavailable if the store does
        not respond for a while.
        """
        call_ids = [call.call_id for call in calls]
        try:
            await retry_unavailable(
                lambda: self._store.expect_outputs(tenant, response_id, fence, call_ids), _RETRY_SECONDS
            )
        except OwnershipLost:
            raise _lost_error() from None
        await self._notify(response_id)
        outputs = await self._wait_all(tenant, response_id, call_ids)
        return [_to_item(call, output) for call, output in zip(calls, outputs, strict=True)]

    async def submit(self, tenant: str, response_id: str, submitted: SubmittedToolOutput) -> bytes:
        """Store an output and return the JSON of the reply.

        Raises NotFound, NotWaiting, NotPending, and errors for content that a model cannot be shown.
        """
        await self._check_content(tenant, submitted)
        outcome = await self._submit_once(tenant, response_id, submitted)
        if outcome in ("not pending", "not waiting") and await self._may_wait_for(
            tenant, response_id, submitted.call_id
        ):
            outcome = await self._submit_early(tenant, response_id, submitted)
        match outcome:
            case "unknown":
                raise unknown_response_error(response_id)
            case "not waiting" | "ended":
                raise NotWaiting(f"The response {quote_id(response_id)} does not wait for tool outputs.")
            case "not pending":
                raise _not_pending_error(submitted, "does not wait for it")
            case "answered":
                raise _not_pending_error(submitted, "has its output already")
        await self._notify(response_id)
        return encode(ToolOutputTaken(id=response_id))

    async def _check_content(self, tenant: str, submitted: SubmittedToolOutput) -> None:
        """Reject images and files that cannot be loaded: they must neither be stored nor fail the response."""
        if isinstance(submitted.output, str):
            return
        attached = AttachmentLookup()
        ContentRenderer(_IMAGE_INPUT, attached).render(
            submitted.output, "", lambda index, field: f"output[{index}]{field}"
        )
        if attached.missing:
            await self._attachments.load(tenant, attached)

    async def _submit_once(self, tenant: str, response_id: str, submitted: SubmittedToolOutput) -> OutputSubmission:
        return await self._store.submit_output(tenant, response_id, submitted.call_id, encode(submitted.output))

    async def _may_wait_for(self, tenant: str, response_id: str, call_id: str) -> bool:
        """Return whether this may be a call that the response is going to wait for."""
        if parse_response_id(call_id) != response_id or (row := await self._store.get(tenant, response_id)) is None:
            return False
        return self.should_wait(restore_request(row).request, stored=True)

    async def _submit_early(self, tenant: str, response_id: str, submitted: SubmittedToolOutput) -> OutputSubmission:
        """Submit repeatedly until the response waits for the output or ends, or the time for early outputs is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _EARLY_SECONDS
        with self._notifications.subscribe(response_id) as waiter:
            while True:
                waiter.clear()
                outcome = await self._submit_once(tenant, response_id, submitted)
                if (
                    outcome not in ("not pending", "not waiting")
                    or loop.time() >= deadline
                    or self._notifications.closed
                ):
                    return outcome
                await asyncio.sleep(_MIN_POLL_SECONDS)
                await waiter.wait_for(_POLL_SECONDS)

    async def _wait_all(self, tenant: str, response_id: str, call_ids: Collection[str]) -> list[bytes]:
        loop, interval = asyncio.get_running_loop(), _POLL_SECONDS
        deadline = loop.time() + self._settings.tool_output_timeout
        with self._notifications.subscribe(response_id) as waiter:
            while True:
                waiter.clear()
                stored = await retry_unavailable(lambda: self._store.outputs(tenant, response_id), _RETRY_SECONDS)
                outputs = [output for call_id in call_ids if (output := stored.get(call_id)) is not None]
                if len(outputs) == len(call_ids):
                    return outputs
                if not stored.keys() >= {*call_ids}:
                    raise _lost_error()
                if (remaining := deadline - loop.time()) <= 0:
                    missing = ", ".join([call_id for call_id in call_ids if stored[call_id] is None][:3])
                    seconds = self._settings.tool_output_timeout
                    raise ToolOutputTimeout(f"No tool output was received within {seconds:g} seconds for {missing}.")
                await waiter.wait_for(min(interval, remaining))
                interval = min(interval * 1.5, _MAX_POLL_SECONDS)

    async def _notify(self, response_id: str) -> None:
        """Notify the waiting server. A failure is only logged: the output is already in the store."""
        try:
            await self._live.tell(response_id)
        except AntiphonError as error:
            log.warning("the notification of an output for %s could not be sent: %s", response_id, error)


def _to_item(call: ClientCall, output: bytes) -> ClientOutput:
    content = _output_decoder.decode(output)
    if isinstance(call, CustomToolCall):
        return CustomToolCallOutput(call_id=call.call_id, output=content, status="completed")
    return FunctionCallOutput(call_id=call.call_id, output=content, status="completed")


def _not_pending_error(submitted: SubmittedToolOutput, reason: str) -> NotPending:
    return NotPending(
        f"The call {quote_id(submitted.call_id)} is not pending: the response {reason}.", param=submitted.param
    )


def _lost_error() -> ServerRestarted:
    return ServerRestarted("This response was deleted, or taken over by another server, while it ran.")
