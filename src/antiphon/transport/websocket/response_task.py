"""One `response.create` on a WebSocket, from the plan to the last event: the same Source that POST streams from.

Whatever goes wrong becomes an event on its lane, and the socket stays open. What only this connection knows is
remembered before the client hears of its end, so that it can be continued at once.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import perf_counter

from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import AntiphonError, ProcessingFailed
from antiphon.observe import Metrics
from antiphon.observe.log_context import ABOUT, About
from antiphon.protocol.bodies.steering import Submission
from antiphon.protocol.bodies.websocket import socket_error
from antiphon.protocol.decoding.codec import Decoded
from antiphon.protocol.types.events import Completed, Created, Error, Event, Failed, Incomplete
from antiphon.service.access.rate_limits import Quotas
from antiphon.service.persistence.connection_cache import Recent
from antiphon.service.responses import Accepted, Responses
from antiphon.transport.http.error_responses import NEUTRAL
from antiphon.transport.http.request import note_user
from antiphon.transport.middleware.auth import Guard
from antiphon.transport.middleware.rate_limiting import Metering
from antiphon.transport.middleware.request_tracing import Watching
from antiphon.transport.server.ws_upgrade import Upgrade
from antiphon.transport.streaming.legacy_events import Manner, asked_urls
from antiphon.transport.websocket.event_writer import open_socket_outlet
from antiphon.transport.websocket.steering import Steering, Target
from antiphon.transport.websocket.timers import Silence

_LABEL = "websocket response.create"
_TERMINAL = frozenset({Completed, Incomplete, Failed})
_log = logging.getLogger(__name__)

Say = Callable[[Struct, str | None], Awaitable[None]]


class Wanted(Struct, frozen=True, eq=False):
    """A response that a client asked for, or that follows one that was steered."""

    decoded: Decoded
    lane: str | None
    size: int  # of the message, in bytes
    steers: Sequence[Submission] = ()  # what goes with it that was said to another
    follows: bool = False  # by itself: nobody asked for it


class Memory(Struct, frozen=True, eq=False):
    """What a connection knows."""

    id: str  # its own
    recent: Recent
    steering: Steering


class Responding:
    def __init__(
        self,
        service: Responses,
        guard: Guard,
        metrics: Metrics,
        ping_interval: float,
        metering: Metering | None = None,
        manner: Manner | None = None,
    ) -> None:
        self.watching: Watching | None = None  # None: nobody wants to know of single messages
        self._metering = metering or Metering(Quotas())
        self._manner = manner
        self._service = service
        self._guard = guard
        self._metrics = metrics
        self._ping_interval = ping_interval

    async def check(self, request: Upgrade) -> None:
        """Before each message: the key that it came in with may have been revoked since."""
        await self._guard.check_again(request)

    async def respond(self, request: Upgrade, wanted: Wanted, memory: Memory, say: Say) -> None:
        """And whatever follows it by itself."""
        following: Wanted | None = wanted
        while following is not None:
            following = await self._one(request, following, memory, say)

    async def _one(self, request: Upgrade, wanted: Wanted, memory: Memory, say: Say) -> Wanted | None:
        began, status, span = perf_counter(), 200, None
        if not wanted.follows:
            wanted = _taking_along(wanted, memory)
        about = About(request.id, connection=memory.id, trace=request.about.trace)
        ABOUT.set(about)
        if self.watching is not None:
            span = self.watching.message(request, _LABEL, about)
        try:
            self._guard.check_new_work()
            async with self._metering.charged(request, wanted.size):
                target = await self._streamed(request, wanted, memory)
            return await _after(wanted, target, memory, say)
        except AntiphonError as error:
            status = error.status
            await _refuse(wanted, memory, say, error)
        except Exception:
            status = ProcessingFailed.status
            _log.exception("A message failed.", extra={"request_id": request.id, "connection_id": memory.id})
            await _refuse(wanted, memory, say, ProcessingFailed(NEUTRAL.format(request.id)))
        finally:
            self._metrics.request_done(_LABEL, status, perf_counter() - began)
            if self.watching is not None:
                self.watching.end(request, _LABEL, status, span, began)
        return None

    async def _streamed(self, request: Upgrade, wanted: Wanted, memory: Memory) -> Target:
        accepted = await self._service.create(request.tenant, wanted.decoded, recent=memory.recent)
        source = accepted.source
        assert source is not None  # nothing here is for the background
        note_user(request.id, wanted.decoded.request)
        manner = self._manner
        retold = None if manner is None else manner.open(request, asked_urls(wanted.decoded.request))
        outlet = open_socket_outlet(request.send, wanted.lane, retold)
        target = Target(wanted.decoded, outlet, wanted.lane, accepted.steer)
        settle = partial(_settle, wanted, accepted, memory, target)

        def tell(events: list[Event]) -> Awaitable[None] | None:
            if type(events[-1]) in _TERMINAL or target.begins:
                settle(events)
                events = _told_once(events)
            return outlet.tell(events)

        try:
            with Silence(source, outlet, self._ping_interval):
                await source.drive(tell)
                await outlet.end()
        finally:
            memory.steering.forget(target)
            source.leave()
        return target


def _taking_along(wanted: Wanted, memory: Memory) -> Wanted:
    """With what was said to the response that it continues. Only now: what is still refused before takes nothing."""
    decoded, steers = memory.steering.taken_along(wanted.lane, wanted.decoded)
    return replace(wanted, decoded=decoded, steers=steers) if steers else wanted


def _settle(wanted: Wanted, accepted: Accepted, memory: Memory, target: Target, events: Sequence[Event]) -> None:
    """Before the client hears that it begins, or has ended."""
    first, last = events[0], events[-1]
    if isinstance(first, Created):
        memory.steering.began(first.response.id, target)
    if isinstance(last, Failed):
        memory.recent.failed(wanted.lane, wanted.decoded.request.previous_response_id)
    elif isinstance(last, Completed | Incomplete) and accepted.past is not None:
        memory.recent.remember(wanted.lane, last.response, accepted.past, wanted.size)
    if isinstance(last, Completed | Incomplete | Failed):
        target.ended = last.response


def _told_once(events: list[Event]) -> list[Event]:
    """Without the `error` that comes before `response.failed` in a stream: clients on a WebSocket take it for the end,
    and what follows it for the beginning of their next response."""
    if not isinstance(events[-1], Failed):
        return events
    return [event for event in events if not isinstance(event, Error)]


async def _after(wanted: Wanted, target: Target, memory: Memory, say: Say) -> Wanted | None:
    told, decoded = memory.steering.after(target)
    for event in told:
        await say(event, wanted.lane)
    if decoded is None:
        return None
    size = sum(steer.size for steer in target.steers)
    return Wanted(decoded, wanted.lane, size, tuple(target.steers), follows=True)


async def _refuse(wanted: Wanted, memory: Memory, say: Say, error: AntiphonError) -> None:
    memory.recent.failed(wanted.lane, wanted.decoded.request.previous_response_id)
    if not wanted.follows:
        await say(socket_error(error), wanted.lane)
    for event in memory.steering.failed(wanted.steers, "successor_creation_failed", error.message, 0):
        await say(event, wanted.lane)
