"""Runs one `response.create` of a WebSocket, from planning to the last event, with the same Source that POST streams
from.

Every failure becomes an event on its lane, and the WebSocket stays open. A response that only this connection can
continue is cached before its last event is sent, so that the client can continue it at once.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import AntiphonError, ProcessingFailed
from antiphon.observe import Metrics
from antiphon.observe.logs import LOG_CONTEXT, LogContext
from antiphon.protocol.bodies.websocket import SteerSubmission, to_socket_error
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.types.events import Completed, Created, Error, Event, Failed, Incomplete, Keepalive
from antiphon.service.persistence.history_cache import ConnectionCache
from antiphon.service.responses import AcceptedResponse, Responses
from antiphon.transport.http.error_responses import INTERNAL_MESSAGE
from antiphon.transport.http.request import log_user
from antiphon.transport.http.websocket_upgrade import WebSocketUpgrade
from antiphon.transport.middleware.auth import Authenticator
from antiphon.transport.middleware.rate_limiting import RateLimitingMiddleware
from antiphon.transport.middleware.request_tracing import RequestTracing
from antiphon.transport.streaming.delivery import Delivery
from antiphon.transport.streaming.event_writer import EventWriter
from antiphon.transport.streaming.legacy_events import LegacyStream, included_image_urls
from antiphon.transport.websocket.steering import Steering, SteerTarget

_LABEL = "websocket response.create"
_TERMINAL = frozenset({Completed, Incomplete, Failed})
_log = logging.getLogger(__name__)

SendEvent = Callable[[Struct, str | None], Awaitable[None]]


class CreateCommand(Struct, frozen=True, eq=False):
    """A `response.create` of the client, or the successor of a steered response."""

    decoded: DecodedRequest
    lane: str | None
    size: int  # of the message, in bytes
    steers: Sequence[SteerSubmission] = ()  # input that was sent to the response that it continues
    is_successor: bool = False  # follows a steered response, without a message of the client


class ConnectionState(Struct, frozen=True, eq=False):
    """The state of a connection that its responses share."""

    id: str  # id of the connection
    cache: ConnectionCache
    steering: Steering


class ResponseTask(Struct, eq=False):
    """Runs the responses of all WebSockets."""

    _service: Responses
    _authenticator: Authenticator
    _metrics: Metrics
    _delivery: Delivery
    _rate_limiting: RateLimitingMiddleware
    tracing: RequestTracing | None = None  # None: messages are neither traced nor logged

    async def check(self, request: WebSocketUpgrade) -> None:
        """Check the key again before each message: it may have been revoked since."""
        await self._authenticator.recheck(request)

    async def respond(
        self, request: WebSocketUpgrade, message: CreateCommand, state: ConnectionState, send_event: SendEvent
    ) -> None:
        """Run a response, and the successors that follow it by steering."""
        next_message: CreateCommand | None = message
        while next_message is not None:
            next_message = await self._respond_once(request, next_message, state, send_event)

    async def _respond_once(
        self, request: WebSocketUpgrade, message: CreateCommand, state: ConnectionState, send_event: SendEvent
    ) -> CreateCommand | None:
        started_at, status, span = perf_counter(), 200, None
        if not message.is_successor:
            # input that was steered to the response that it continues; a message that is rejected earlier does not
            # take it
            decoded, steers = state.steering.attach_waiting(message.lane, message.decoded)
            message = replace(message, decoded=decoded, steers=steers) if steers else message
        log_context = LogContext(request.id, "", state.id, request.log_context.trace_id)
        log_context.tenant, log_context.key = request.tenant, request.principal.key
        LOG_CONTEXT.set(log_context)
        if self.tracing is not None:
            span = self.tracing.start_span(request, _LABEL, log_context)
        try:
            self._authenticator.check_new_work()
            async with self._rate_limiting.charge(request, message.size):
                target = await self._stream(request, message, state)
            return await _finish(message, target, state, send_event)
        except AntiphonError as error:
            status = error.status
            await _send_error(message, state, send_event, error)
        except Exception:
            status = ProcessingFailed.status
            _log.exception("A message failed.", extra={"request_id": request.id, "connection_id": state.id})
            await _send_error(message, state, send_event, ProcessingFailed(INTERNAL_MESSAGE.format(request.id)))
        finally:
            self._metrics.record_request(_LABEL, status, perf_counter() - started_at)
            if self.tracing is not None:
                self.tracing.finish(request, _LABEL, status, span, started_at)
        return None

    async def _stream(self, request: WebSocketUpgrade, message: CreateCommand, state: ConnectionState) -> SteerTarget:
        accepted = await self._service.create(request.tenant, message.decoded, connection_cache=state.cache)
        source = accepted.source
        assert source is not None  # background responses are rejected on a WebSocket
        log_user(request.id, message.decoded.request)
        legacy_format = self._delivery.legacy_format
        legacy = (
            None
            if legacy_format is None
            else legacy_format.open_stream(request, included_image_urls(message.decoded.request))
        )
        writer = WebSocketEventWriter(request, message.lane, legacy)
        run = accepted.run
        steer, cancel = (None, None) if run is None else (run.steer, run.stop)
        target = SteerTarget(message.decoded, writer, message.lane, steer, cancel)
        writer.on_update = partial(_update_state, message, accepted, state, target)
        try:
            await self._delivery.stream(source, writer)
        finally:
            state.steering.remove_target(target)
            writer.on_update = None  # break the reference cycle: the request may be large
        return target


def _update_state(
    message: CreateCommand,
    accepted: AcceptedResponse,
    state: ConnectionState,
    target: SteerTarget,
    events: Sequence[Event],
) -> None:
    """Update the connection's state before the first and the last event are sent."""
    first, last = events[0], events[-1]
    if isinstance(first, Created):
        state.steering.add_target(first.response.id, target)
    if isinstance(last, Failed):
        state.cache.drop_failed_parent(message.lane, message.decoded.request.previous_response_id)
    elif isinstance(last, (Completed, Incomplete)) and accepted.history is not None:
        state.cache.remember(message.lane, last.response, accepted.history, message.size)
    if isinstance(last, (Completed, Incomplete, Failed)):
        target.final_response = last.response


def _drop_errors(events: list[Event]) -> list[Event]:
    """Remove the `error` before `response.failed`: on a WebSocket clients take it for the end of the response, and the
    event behind it for the start of their next one.
    """
    if not isinstance(events[-1], Failed):
        return events
    return [event for event in events if not isinstance(event, Error)]


async def _finish(
    message: CreateCommand, target: SteerTarget, state: ConnectionState, send_event: SendEvent
) -> CreateCommand | None:
    """Send the events after a response, and return its successor, if any."""
    events, decoded = state.steering.finish_target(target)
    for event in events:
        await send_event(event, message.lane)
    if decoded is None:
        return None
    size = sum(steer.size for steer in target.steers)
    return CreateCommand(decoded, message.lane, size, tuple(target.steers), is_successor=True)


async def _send_error(
    message: CreateCommand, state: ConnectionState, send_event: SendEvent, error: AntiphonError
) -> None:
    state.cache.drop_failed_parent(message.lane, message.decoded.request.previous_response_id)
    if not message.is_successor:
        await send_event(to_socket_error(error), message.lane)
    for event in state.steering.make_failures(message.steers, "successor_creation_failed", error.message, 0):
        await send_event(event, message.lane)


_encode_lines = msgspec.json.Encoder().encode_lines


class WebSocketEventWriter(EventWriter[Event]):
    """Writes the events of one response on a WebSocket, which is open, on any server.

    Each event is a text message: one JSON object, tagged with the name of the lane, if any. Events that are ready
    together go in one write, as in a stream of server-sent events. `legacy`: converts them for older clients.
    """

    def __init__(self, request: WebSocketUpgrade, lane: str | None, legacy: LegacyStream | None = None) -> None:
        # gets the first and the last events before they are sent
        self.on_update: Callable[[Sequence[Event]], None] | None = None
        self._direct: Any = request.channel.direct
        super().__init__(self._direct)
        self._send = request.send
        self._lane = lane
        self._legacy = legacy

    def emit(self, events: list[Event]) -> Awaitable[None] | None:
        if self.on_update is not None and (self.last is None or type(events[-1]) in _TERMINAL):
            self.on_update(events)
            events = _drop_errors(events)
        return super().emit(events)

    def write(self, events: list[Event]) -> None:
        if converted := self._convert(events):
            self._direct.write_texts(encode_texts([*converted], self._lane))

    async def send(self, events: list[Event]) -> None:
        if converted := self._convert(events):
            for text in encode_texts([*converted], self._lane):
                await self._send({"type": "websocket.send", "text": text.decode()})

    async def send_keepalive(self) -> None:
        """Send a keep-alive after the last event, if the client reads. It repeats the number of that event."""
        if self.last is None or (self._direct is not None and self._direct.write_paused):
            return
        if self._legacy is None:
            keepalive: Event = Keepalive(sequence_number=self.last.sequence_number)
        else:
            keepalive = self._legacy.make_keepalive(self.last)
        texts = encode_texts([keepalive], self._lane)
        if self._direct is None:
            await self._send({"type": "websocket.send", "text": texts[0].decode()})
        else:
            self._direct.write_texts(texts)

    async def end(self) -> None:
        self.flush()

    def _convert(self, events: list[Event]) -> list[Event]:
        return events if self._legacy is None else self._legacy.convert(events)


def encode_texts(events: list[Struct], lane: str | None) -> list[bytes]:
    """Encode each event as JSON. All of them are encoded in one call, since JSON lines contain no line breaks."""
    lines = _encode_lines(events)[:-1].split(b"\n")
    if lane is None:
        return lines
    tag = b',"stream_id":"%b"}' % lane.encode()
    return [line[:-1] + tag for line in lines]
