"""A response that waits for its client's tools: it pauses at their calls and goes on, in the same stream, with outputs
that come by another request, to any server.

What is waited for and what has come is in the store, so that both outlive the server that waits. A word wakes it; as
words may get lost, it looks by itself too. Who hears of a call before the model has said all else may be early with its
output: that is kept waiting for a while.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence

import msgspec
from msgspec import Struct

from antiphon.errors import AntiphonError, NotPending, NotWaiting, ServerRestarted, ToolOutputTimeout
from antiphon.ids import home
from antiphon.protocol.bodies.tool_outputs import Submitted, ToolOutputTaken
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.items import CustomToolCall, CustomToolCallOutput, FunctionCall, FunctionCallOutput
from antiphon.protocol.types.items import ToolOutputPart as Part
from antiphon.protocol.types.request import CreateResponse
from antiphon.render.attachments import Attached
from antiphon.render.content import Beholder
from antiphon.service.attachments.attachments import Attachments
from antiphon.service.persistence.live_writer import insist
from antiphon.service.persistence.notifications import Words
from antiphon.service.persistence.stored_request import restored
from antiphon.service.persistence.stored_responses import unknown
from antiphon.stores.base import Lost, Store, Submission
from antiphon.stores.live.base import LiveLog

log = logging.getLogger(__name__)

ClientCall = FunctionCall | CustomToolCall
ClientOutput = FunctionCallOutput | CustomToolCallOutput

_LOOK = 1.0  # seconds without a word, at first; then longer and longer
_LONGEST_LOOK = 5.0
_PATIENCE = 30.0  # seconds in which a store does not answer
_EARLY = 30.0  # seconds that an output may be too early
_PAUSE = 0.02  # seconds between two looks, however much news there is
_SHOWN = 64  # characters of an id that was sent

_SIGHT = frozenset({"input_image"})  # whether the model sees is not known here

_outputs = msgspec.json.Decoder(str | list[Part])


class ToolOutputSettings(Struct, frozen=True, kw_only=True):
    """The operator's word."""

    timeout: float = 600.0  # seconds that a response waits
    always: bool = False  # --wait-for-tool-outputs


class ToolOutputs:
    def __init__(
        self,
        store: Store,
        live: LiveLog,
        words: Words,
        settings: ToolOutputSettings,
        attachments: Attachments | None = None,
    ) -> None:
        self._attachments = attachments or Attachments()
        self._store = store
        self._live = live
        self._words = words
        self._settings = settings

    def awaits(self, request: CreateResponse, stored: bool) -> bool:
        """Is a response to this request to wait? One that nobody could hear of before its end never does."""
        if not (stored and (request.stream or request.background)):
            return False
        asked = request.wait_for_tool_outputs
        return self._settings.always if asked is None else asked

    async def wait(self, tenant: str, response_id: str, fence: int, calls: Sequence[ClientCall]) -> list[ClientOutput]:
        """The outputs of these calls, in their order, once all of them are there.

        Raises ToolOutputTimeout, ServerRestarted if the response is not ours any more, Unavailable if the store does
        not answer for a while.
        """
        names = [call.call_id for call in calls]
        try:
            await insist(lambda: self._store.expect_outputs(tenant, response_id, fence, names), _PATIENCE)
        except Lost:
            raise _lost() from None
        await self._tell(response_id)
        given = await self._all(tenant, response_id, names)
        return [_output(call, output) for call, output in zip(calls, given, strict=True)]

    async def submit(self, tenant: str, response_id: str, submitted: Submitted) -> bytes:
        """The JSON to answer with. Raises NotFound, NotWaiting, NotPending, and for what cannot be shown to a model."""
        await self._show(tenant, submitted)
        taken = await self._submitted(tenant, response_id, submitted)
        if taken in ("not pending", "not waiting") and await self._may_wait(tenant, response_id, submitted.call_id):
            taken = await self._insisted(tenant, response_id, submitted)
        match taken:
            case "unknown":
                raise unknown(response_id)
            case "not waiting" | "ended":
                raise NotWaiting(f"The response {response_id[:_SHOWN]!r} does not wait for tool outputs.")
            case "not pending":
                raise _not_pending(submitted, "does not wait for it")
            case "answered":
                raise _not_pending(submitted, "has its output already")
        await self._tell(response_id)
        return encode(ToolOutputTaken(id=response_id))

    async def _show(self, tenant: str, submitted: Submitted) -> None:
        """A picture or file that is not to be had is refused here: it must not end the response, nor is it taken."""
        if isinstance(submitted.output, str):
            return
        attached = Attached()
        Beholder(_SIGHT, attached).content(submitted.output, "", lambda index, field: f"output[{index}]{field}")
        if attached.wanted:
            await self._attachments.bring(tenant, attached)

    async def _submitted(self, tenant: str, response_id: str, submitted: Submitted) -> Submission:
        return await self._store.submit_output(tenant, response_id, submitted.call_id, encode(submitted.output))

    async def _may_wait(self, tenant: str, response_id: str, call_id: str) -> bool:
        """Could this be a call of the response, for which it is going to wait?"""
        if home(call_id) != response_id or (row := await self._store.get(tenant, response_id)) is None:
            return False
        return self.awaits(restored(row).request, stored=True)

    async def _insisted(self, tenant: str, response_id: str, submitted: Submitted) -> Submission:
        """Until the response waits for it, ends, or has not come to that for too long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _EARLY
        with self._words.of(response_id) as ear:
            while True:
                ear.forget()
                taken = await self._submitted(tenant, response_id, submitted)
                if taken not in ("not pending", "not waiting") or loop.time() >= until or self._words.closed:
                    return taken
                await asyncio.sleep(_PAUSE)
                await ear.listen(_LOOK)

    async def _all(self, tenant: str, response_id: str, names: Collection[str]) -> list[bytes]:
        loop, look = asyncio.get_running_loop(), _LOOK
        until = loop.time() + self._settings.timeout
        with self._words.of(response_id) as ear:
            while True:
                ear.forget()
                known = await insist(lambda: self._store.outputs(tenant, response_id), _PATIENCE)
                given = [output for name in names if (output := known.get(name)) is not None]
                if len(given) == len(names):
                    return given
                if not known.keys() >= {*names}:
                    raise _lost()
                if (rest := until - loop.time()) <= 0:
                    raise _late(self._settings.timeout, [name for name in names if known[name] is None])
                await ear.listen(min(look, rest))
                look = min(look * 1.5, _LONGEST_LOOK)

    async def _tell(self, response_id: str) -> None:
        """The output is in the store; that somebody is woken at once is worth no failure."""
        try:
            await self._live.tell(response_id)
        except AntiphonError as error:
            log.warning("nobody was told of an output for %s: %s", response_id, error)


def _output(call: ClientCall, output: bytes) -> ClientOutput:
    given = _outputs.decode(output)
    if isinstance(call, CustomToolCall):
        return CustomToolCallOutput(call_id=call.call_id, output=given, status="completed")
    return FunctionCallOutput(call_id=call.call_id, output=given, status="completed")


def _not_pending(submitted: Submitted, why: str) -> NotPending:
    return NotPending(
        f"The call {submitted.call_id[:_SHOWN]!r} is not pending: the response {why}.", param=submitted.param
    )


def _late(seconds: float, missing: Sequence[str]) -> ToolOutputTimeout:
    return ToolOutputTimeout(f"No output came within {seconds:g} seconds for {', '.join(missing[:3])}.")


def _lost() -> ServerRestarted:
    return ServerRestarted("This response was deleted, or taken over by another server, while it ran.")
