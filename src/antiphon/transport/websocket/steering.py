"""Steering: what a user says while a response runs ends it where it is, and goes into the one that follows by itself.

    running ── steer: accepted ──▶ incomplete, «steered» ──▶ its successor
       ├── about to call something ──▶ completed ──▶ pending, until a create brings the outputs: it takes it along
       └── it fails ──▶ steer.failed, with what was said

What the server runs for a response is not broken off: it ends by itself, and its successor follows.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.emitter.response_views import required_input
from antiphon.core.history.history import is_output
from antiphon.limits import Limits
from antiphon.protocol.bodies.steering import (
    SteerFailed,
    SteerPending,
    Submission,
    Unsteerable,
    read_steer,
    steer_accepted,
    steer_failed,
    steer_pending,
    steer_refused,
)
from antiphon.protocol.bodies.websocket import Message
from antiphon.protocol.decoding.codec import Decoded
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.items import McpApprovalResponse
from antiphon.protocol.types.response import Response
from antiphon.service.prompting.warmup import warms
from antiphon.transport.streaming.event_writer import Outlet

_MOST = 16  # submissions that wait for one response
_WAITING = 32  # responses whose submissions wait for outputs
_MOST_BYTES = 32 * 1024 * 1024  # of all submissions of a connection that wait
_REMEMBERED = 64  # responses of which it is known that they have ended


class Target:
    """A response that runs on this connection. `stop` ends it where it is, unless that would break something off."""

    def __init__(
        self, decoded: Decoded, outlet: Outlet[Event], lane: str | None, stop: Callable[[], bool] | None
    ) -> None:
        self.decoded = decoded
        self.lane = lane
        self.id = ""
        self.begins = True  # nobody has heard of it
        self.steers: list[Submission] = []
        self.ended: Response | None = None
        self._outlet = outlet
        self._stop = stop

    @property
    def number(self) -> int:
        last = self._outlet.last
        return 0 if last is None else last.sequence_number

    def add(self, steer: Submission) -> None:
        request = self.decoded.request
        if self._stop is None or request.conversation or request.context_management or warms(request):
            raise Unsteerable("steering_not_supported", "This response cannot be steered: wait for its end.")
        if len(self.steers) >= _MOST:
            raise Unsteerable("too_many_pending_steers", f"At most {_MOST} inputs may wait for a response.")
        self.steers.append(steer)

    def stop(self) -> None:
        if self._stop is not None:
            self._stop()


class Answer(Struct, frozen=True, eq=False):
    event: Event
    lane: str | None = None
    target: Target | None = None  # that has to be stopped once the answer is told


class Steering:
    """Of one connection."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most = most_bytes
        self._running: dict[str, Target] = {}
        self._waiting: dict[str, tuple[str | None, list[Submission]]] = {}  # for outputs, by the response's id
        self._ended: deque[str] = deque(maxlen=_REMEMBERED)

    def take(self, message: Message, limits: Limits) -> Answer:
        try:
            steer = read_steer(message, limits)
            target = self._find(steer.previous)
            if self._bytes() + steer.size > self._most:
                raise Unsteerable("too_many_pending_steers", "Too much waits for the responses of this connection.")
            target.add(steer)
        except Unsteerable as error:
            return Answer(steer_refused(message, error))
        return Answer(steer_accepted(steer, target.number), target.lane, target)

    def began(self, response_id: str, target: Target) -> None:
        """It can be steered from now on."""
        target.begins = False
        target.id = response_id
        self._running[response_id] = target

    def forget(self, target: Target) -> None:
        """It is over."""
        if self._running.pop(target.id, None) is not None:
            self._ended.append(target.id)

    def after(self, target: Target) -> tuple[Sequence[SteerPending | SteerFailed], Decoded | None]:
        """What is told once a response has ended, and the one that follows by itself."""
        response, steers = target.ended, target.steers
        if not steers or response is None:
            return (), None
        if response.status not in ("completed", "incomplete"):
            return self.failed(steers, "response_not_active", "The response has failed.", target.number), None
        if response.status == "completed" and (required := required_input(response.output)):
            if len(self._waiting) >= _WAITING:
                told = "Too many responses wait for outputs."
                return self.failed(steers, "too_many_pending_steers", told, target.number), None
            self._waiting[response.id] = target.lane, steers
            return [steer_pending(steer, required, target.number) for steer in steers], None
        return (), _successor(target.decoded, response, steers)

    def taken_along(self, lane: str | None, decoded: Decoded) -> tuple[Decoded, Sequence[Submission]]:
        """What waits for a create that continues this response: it goes with it, behind the outputs."""
        waiting = self._waiting.get(decoded.request.previous_response_id or "")
        if waiting is None or waiting[0] != lane:
            return decoded, ()
        del self._waiting[decoded.request.previous_response_id or ""]
        return _joined(decoded, waiting[1]), waiting[1]

    def failed(self, steers: Sequence[Submission], code: str, message: str, number: int) -> list[SteerFailed]:
        return [steer_failed(steer, code, message, number) for steer in steers]

    def _bytes(self) -> int:
        """Of what waits."""
        waiting = [target.steers for target in self._running.values()]
        waiting += [steers for _, steers in self._waiting.values()]
        return sum(steer.size for steers in waiting for steer in steers)

    def _find(self, response_id: str) -> Target:
        if (target := self._running.get(response_id)) is not None:
            return target
        if response_id in self._ended:
            raise Unsteerable("response_already_completed", "This response has ended: continue it.")
        raise Unsteerable("response_not_found", "No such response runs on this connection.")


def _successor(decoded: Decoded, ended: Response, steers: Sequence[Submission]) -> Decoded:
    """The same request, continued by what was said. What its prompt or earlier messages said is there already."""
    items = [item for steer in steers for item in steer.items]
    said: dict[str, Any] = {"previous_response_id": ended.id, "input": items}
    if decoded.request.prompt is not None:
        said |= {"instructions": ended.instructions, "model": ended.model}
    request = replace(decoded.request, **said, prompt=None, previous_input_messages=None)
    return replace(decoded, request=request, sent=(decoded.sent - {"prompt", "previous_input_messages"}).union(said))


def _joined(decoded: Decoded, steers: Sequence[Submission]) -> Decoded:
    """Models expect the outputs right behind their calls."""
    given = decoded.request.input
    outputs = [*takewhile(lambda item: is_output(item) or isinstance(item, McpApprovalResponse), given)]
    said = [item for steer in steers for item in steer.items]
    request = replace(decoded.request, input=[*outputs, *said, *given[len(outputs) :]])
    return replace(decoded, request=request, sent=decoded.sent | {"input"})
