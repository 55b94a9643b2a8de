"""Steering: input that a user sends while a response runs ends the response and starts a successor with that input.

    running ── steer: accepted ──▶ incomplete, «steered» ──▶ its successor
       ├── about to call a tool ──▶ completed ──▶ pending, until a create brings the outputs and takes the input along
       └── it fails ──▶ steer.failed, with the input

Server-side tools of a response are not interrupted: the response ends after them, and its successor follows. A client
can also cancel a response that runs on its connection: it ends at once, without a successor.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.emitter.response_views import required_input
from antiphon.core.history.history import is_output
from antiphon.errors import NotCancellable, NotFound
from antiphon.limits import Limits
from antiphon.protocol.bodies import websocket as wire
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.items import McpApprovalResponse
from antiphon.protocol.types.response import Response
from antiphon.service.prompting.prepared_request import is_warmup
from antiphon.transport.streaming.event_writer import EventWriter

_MAX_SUBMISSIONS = 16  # pending submissions of one response
_MAX_WAITING_RESPONSES = 32  # responses whose submissions wait for tool outputs
_MAX_PENDING_BYTES = 32 * 1024 * 1024  # all pending submissions of a connection
_MAX_ENDED_IDS = 64  # ids of ended responses, to distinguish them from unknown ones


class SteerTarget(Struct, eq=False):
    """A response that runs on this connection. `stop` ends it, unless a tool call would be interrupted."""

    decoded: DecodedRequest
    _writer: EventWriter[Event]
    lane: str | None
    _stop: Callable[[], bool] | None
    cancel: Callable[[], None] | None = None
    id: str = ""
    steers: list[wire.SteerSubmission] = []
    final_response: Response | None = None

    @property
    def sequence_number(self) -> int:
        last = self._writer.last
        return 0 if last is None else last.sequence_number

    def add(self, steer: wire.SteerSubmission) -> None:
        """Add a submission. Raises Unsteerable."""
        request = self.decoded.request
        if self._stop is None or request.conversation or request.context_management or is_warmup(request):
            raise wire.Unsteerable("steering_not_supported", "This response cannot be steered; wait until it ends.")
        if len(self.steers) >= _MAX_SUBMISSIONS:
            raise wire.Unsteerable(
                "too_many_pending_steers",
                f"Too many pending inputs: the limit of {_MAX_SUBMISSIONS} per response is reached.",
            )
        self.steers.append(steer)

    def stop(self) -> None:
        if self._stop is not None:
            self._stop()


class SteerReply(Struct, frozen=True, eq=False):
    event: Event
    lane: str | None = None
    target: SteerTarget | None = None  # to be stopped once the reply is sent


class Steering:
    """The steering state of one connection."""

    def __init__(self, max_bytes: int = _MAX_PENDING_BYTES) -> None:
        self._max_bytes = max_bytes
        self._running: dict[str, SteerTarget] = {}
        # submissions that wait for tool outputs, with their lane, by the response's id
        self._waiting: dict[str, tuple[str | None, list[wire.SteerSubmission]]] = {}
        self._ended: deque[str] = deque(maxlen=_MAX_ENDED_IDS)

    def submit(self, message: wire.SocketMessage, limits: Limits) -> SteerReply:
        """Add the input of a `response.steer` message to its target."""
        try:
            steer = wire.read_steer(message, limits)
            target = self._find(steer.previous_response_id)
            if self._count_pending_bytes() + steer.size > self._max_bytes:
                raise wire.Unsteerable(
                    "too_many_pending_steers",
                    "The pending inputs of this connection are too large; wait until its responses end.",
                )
            target.add(steer)
        except wire.Unsteerable as error:
            return SteerReply(wire.make_steer_rejected(message, error))
        return SteerReply(wire.make_steer_accepted(steer, target.sequence_number), target.lane, target)

    def cancel(self, message: wire.SocketMessage) -> None:
        """End the response of a `response.cancel` message, unless it has ended. Raises NotFound, NotCancellable."""
        response_id = wire.read_cancel(message)
        if response_id in self._ended:
            return
        if (target := self._running.get(response_id)) is None:
            raise NotFound("No response with this id is running on this connection.", param="response_id")
        if target.cancel is None:
            raise NotCancellable("This response cannot be cancelled here.", param="response_id")
        target.cancel()

    def add_target(self, response_id: str, target: SteerTarget) -> None:
        """Register a response that has started, so that it can be steered."""
        target.id = response_id
        self._running[response_id] = target

    def remove_target(self, target: SteerTarget) -> None:
        """Remove a response that has ended."""
        if self._running.pop(target.id, None) is not None:
            self._ended.append(target.id)

    def finish_target(
        self, target: SteerTarget
    ) -> tuple[Sequence[wire.SteerPending | wire.SteerFailed], DecodedRequest | None]:
        """Return the events to send once a response has ended, and the request of its successor, if any."""
        response, steers = target.final_response, target.steers
        if not steers or response is None:
            return (), None
        if response.status not in ("completed", "incomplete"):
            return self.make_failures(
                steers, "response_not_active", "The response has failed.", target.sequence_number
            ), None
        if response.status == "completed" and (required := required_input(response.output)):
            if len(self._waiting) >= _MAX_WAITING_RESPONSES:
                message = "Too many responses are waiting for tool outputs."
                return self.make_failures(steers, "too_many_pending_steers", message, target.sequence_number), None
            self._waiting[response.id] = target.lane, steers
            return [wire.make_steer_pending(steer, required, target.sequence_number) for steer in steers], None
        return (), _make_successor(target.decoded, response, steers)

    def attach_waiting(
        self, lane: str | None, decoded: DecodedRequest
    ) -> tuple[DecodedRequest, Sequence[wire.SteerSubmission]]:
        """Add the input that waits for a create that continues the same response, behind its tool outputs."""
        waiting = self._waiting.get(decoded.request.previous_response_id or "")
        if waiting is None or waiting[0] != lane:
            return decoded, ()
        del self._waiting[decoded.request.previous_response_id or ""]
        return _insert_steers(decoded, waiting[1]), waiting[1]

    def make_failures(
        self, steers: Sequence[wire.SteerSubmission], code: str, message: str, number: int
    ) -> list[wire.SteerFailed]:
        return [wire.make_steer_failed(steer, code, message, number) for steer in steers]

    def _count_pending_bytes(self) -> int:
        waiting = [target.steers for target in self._running.values()]
        waiting += [steers for _, steers in self._waiting.values()]
        return sum(steer.size for steers in waiting for steer in steers)

    def _find(self, response_id: str) -> SteerTarget:
        if (target := self._running.get(response_id)) is not None:
            return target
        if response_id in self._ended:
            raise wire.Unsteerable(
                "response_already_completed", "This response has ended; continue it with response.create."
            )
        raise wire.Unsteerable("response_not_found", "No response with this id is running on this connection.")


def _make_successor(
    decoded: DecodedRequest, previous: Response, steers: Sequence[wire.SteerSubmission]
) -> DecodedRequest:
    """Make the request of the successor: the same one, continued by the steered input.

    The content of its prompt and of its earlier messages is already part of the previous response.
    """
    items = [item for steer in steers for item in steer.items]
    changes: dict[str, Any] = {"previous_response_id": previous.id, "input": items}
    if decoded.request.prompt is not None:
        changes |= {"instructions": previous.instructions, "model": previous.model}
    request = replace(decoded.request, **changes, prompt=None, previous_input_messages=None)
    return replace(decoded, request=request, sent=(decoded.sent - {"prompt", "previous_input_messages"}).union(changes))


def _insert_steers(decoded: DecodedRequest, steers: Sequence[wire.SteerSubmission]) -> DecodedRequest:
    """Insert the steered input behind the tool outputs, which models expect right behind their calls."""
    sent_items = decoded.request.input
    outputs = [*takewhile(lambda item: is_output(item) or isinstance(item, McpApprovalResponse), sent_items)]
    steered_items = [item for steer in steers for item in steer.items]
    request = replace(decoded.request, input=[*outputs, *steered_items, *sent_items[len(outputs) :]])
    return replace(decoded, request=request, sent=decoded.sent | {"input"})
