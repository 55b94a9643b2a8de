"""One client's WebSocket: messages in, the events of its responses out, until one side closes it.

    message ─▶ its type ─▶ lanes ─▶ a task for each running response ─▶ frames
       └── an error of the client: an error event, and the WebSocket stays open

Messages are received all the time, so that a disconnect is noticed at once: the client's responses are then cancelled.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from time import time
from typing import Any, TypeVar

from msgspec import Struct

from antiphon.config import Config
from antiphon.core.stream_lanes import Lane, LaneLimits, StreamLanes
from antiphon.errors import AntiphonError, ConnectionExpired, InvalidJson, InvalidStreamId, NotAuthenticated
from antiphon.ids import new_id
from antiphon.protocol.bodies import websocket as wire
from antiphon.protocol.decoding.part_cache import PartCache
from antiphon.service.persistence.history_cache import ConnectionCache
from antiphon.transport.http.channel import Message as AsgiMessage
from antiphon.transport.http.websocket_upgrade import WebSocketUpgrade
from antiphon.transport.websocket.response_task import ConnectionState, CreateCommand, ResponseTask, encode_texts
from antiphon.transport.websocket.steering import Steering

T = TypeVar("T")

GOING_AWAY = 1001
POLICY_VIOLATION = 1008
SERVICE_RESTART = 1012

_INLINE_DECODE_BYTES = 640 * 1024  # larger messages are decoded in a thread


class ConnectionLifetime:
    """Calls `expire` after `lifetime` seconds, and `warn`, with that time, `warning` seconds earlier; 0: no warning."""

    __slots__ = ("_timers",)

    def __init__(
        self, lifetime: float, warning: float, warn: Callable[[int], None], expire: Callable[[], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        self._timers = [loop.call_later(lifetime, expire)]
        if 0 < warning < lifetime:
            self._timers.append(loop.call_later(lifetime - warning, warn, int(time() + lifetime)))

    def stop(self) -> None:
        for timer in self._timers:
            timer.cancel()


class WebSocketConnection:
    """A client's connection: its lanes, its running responses and its timers."""

    def __init__(
        self, request: WebSocketUpgrade, response_task: ResponseTask, config: Config, parts: PartCache
    ) -> None:
        self.id = new_id("conn")
        self._request = request
        self._response_task = response_task
        self._settings = settings = config.server
        self._limits = config.limits
        self._parts = parts
        self._state = ConnectionState(self.id, ConnectionCache(settings.websocket_cache_bytes), Steering())
        self._has_lanes = settings.websocket_lanes == "on"
        lane_limits = LaneLimits(max_waiting_bytes=config.limits.body_bytes, exclusive=not self._has_lanes)
        self._lanes: StreamLanes[CreateCommand] = StreamLanes(lane_limits)
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = False
        self._closing = False

    @property
    def load(self) -> tuple[int, int]:
        return self._lanes.load

    async def serve(self) -> None:
        """Process messages until either side closes the connection."""
        settings = self._settings
        timers = ConnectionLifetime(settings.websocket_lifetime, settings.websocket_warning, self._warn, self._expire)
        try:
            while await self._handle_message(await self._request.receive()):
                pass
        finally:
            timers.stop()
            await self._stop()

    def drain(self) -> None:
        """Close when the running responses have ended: the server takes no new work."""
        self._draining = True
        if self._lanes.is_idle:
            self._start_task(self._close(SERVICE_RESTART, "The server is shutting down."))

    async def _handle_message(self, event: AsgiMessage) -> bool:
        """Process a message. Returns False if the client disconnected.

        Only this call references the message, which may be large: the next one may come in an hour.
        """
        if event["type"] == "websocket.disconnect":
            return False
        lane: Lane = None
        try:
            await self._response_task.check(self._request)
            body = _take_text(event)
            message = await _run_reader(len(body), partial(wire.read_message, body, self._limits))
            lane = message.stream_id
            if message.kind == wire.CREATE:
                await self._create(message)
            elif message.kind == wire.CANCEL:
                self._state.steering.cancel(message)
            else:
                await self._steer(message)
        except NotAuthenticated as error:
            await self._send_event(wire.to_socket_error(error), lane)
            await self._close(POLICY_VIOLATION, "The API key is no longer valid.")
        except AntiphonError as error:
            await self._send_event(wire.to_socket_error(error), lane)
        await asyncio.sleep(0)  # many messages may be queued; give other tasks their turn
        return True

    async def _create(self, message: wire.SocketMessage) -> None:
        lane = message.stream_id
        if lane is not None and not self._has_lanes:
            raise InvalidStreamId("This server has no named streams (--websocket-lanes off).", param="stream_id")
        self._lanes.check(lane)
        previous = message.fields.raw.get("previous_response_id")
        try:
            parts = self._parts.for_tenant(self._request.tenant)
            read = partial(wire.read_socket_create, message, self._limits, parts)
            decoded = await _run_reader(message.size, read)
        except AntiphonError:
            self._state.cache.drop_failed_parent(lane, previous if type(previous) is str else None)
            raise
        self._start_responses(self._lanes.submit(lane, CreateCommand(decoded, lane, message.size), message.size))

    async def _steer(self, message: wire.SocketMessage) -> None:
        reply = self._state.steering.submit(message, self._limits)
        await self._send_event(reply.event, reply.lane)
        if reply.target is not None:
            reply.target.stop()

    def _start_responses(self, ready: Sequence[tuple[Lane, CreateCommand]]) -> None:
        for lane, message in ready:
            respond = self._response_task.respond(self._request, message, self._state, self._send_event)
            self._start_task(respond).add_done_callback(partial(self._finish_response, lane))

    def _finish_response(self, lane: Lane, task: asyncio.Task[None]) -> None:
        self._start_responses(self._lanes.finish(lane))
        if self._draining and self._lanes.is_idle:
            self.drain()

    async def _send_event(self, event: Struct, lane: Lane = None) -> None:
        """Send a message that is not an event of a response. A disconnect is handled where messages are received."""
        with suppress(OSError):
            await self._request.send({"type": "websocket.send", "text": encode_texts([event], lane)[0].decode()})

    async def _close(self, code: int, reason: str) -> None:
        if not self._closing:
            self._closing = True
            with suppress(OSError):
                await self._request.send({"type": "websocket.close", "code": code, "reason": reason})

    def _warn(self, expires_at: int) -> None:
        self._start_task(self._send_event(wire.ConnectionExpiring(expires_at=expires_at)))

    def _expire(self) -> None:
        self._start_task(self._close_expired())

    async def _close_expired(self) -> None:
        seconds = self._settings.websocket_lifetime
        error = ConnectionExpired(f"This connection has reached its age limit of {seconds:g} seconds; connect again.")
        await self._send_event(wire.to_socket_error(error))
        await self._close(GOING_AWAY, "The connection has reached its age limit.")

    async def _stop(self) -> None:
        """Cancel all responses of a client that is gone."""
        self._lanes.clear()
        self._closing = True
        for task in [*self._tasks]:
            task.cancel()
        if self._tasks:
            await asyncio.wait([*self._tasks])

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _take_text(event: AsgiMessage) -> bytes:
    """Take the text out of the message, so that large ones are not held twice."""
    text: str | None = event.pop("text", None)
    if text is None:
        raise InvalidJson("Messages must be JSON in text frames; this was a binary frame.")
    return text.encode()


async def _run_reader(size: int, read: Callable[[], T]) -> T:
    return read() if size <= _INLINE_DECODE_BYTES else await asyncio.to_thread(read)
