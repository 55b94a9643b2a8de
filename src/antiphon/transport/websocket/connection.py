"""One client's WebSocket: messages in, the events of its responses out, until somebody closes it.

    message ─▶ what is it? ─▶ lanes ─▶ a task for each response that runs ─▶ frames
       └── a mistake of the client: an error, and the socket stays open

Somebody always listens, so that a client that leaves is noticed at once: what runs for it is then cancelled.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct

from antiphon.core.stream_lanes import Lane, LaneBounds, Lanes
from antiphon.errors import AntiphonError, ConnectionExpired, InvalidJson, InvalidStreamId, NotAuthenticated
from antiphon.ids import new_id
from antiphon.limits import Limits
from antiphon.protocol.bodies.websocket import (
    CREATE,
    ConnectionExpiring,
    Message,
    read_message,
    read_socket_create,
    socket_error,
)
from antiphon.service.persistence.connection_cache import Recent
from antiphon.transport.server.asgi_channel import Message as AsgiMessage
from antiphon.transport.server.ws_upgrade import Upgrade
from antiphon.transport.websocket.frames import texts
from antiphon.transport.websocket.response_task import Memory, Responding, Wanted
from antiphon.transport.websocket.steering import Steering
from antiphon.transport.websocket.timers import Clocks

T = TypeVar("T")

GOING_AWAY = 1001
POLICY_VIOLATION = 1008
SERVICE_RESTART = 1012

_AT_ONCE = 256 * 1024  # bytes of a message that are read where they arrive; more goes to a thread


class SocketSettings(Struct, frozen=True, kw_only=True):
    """The operator's word."""

    limits: Limits
    lanes: LaneBounds = LaneBounds()
    cache_bytes: int
    lifetime: float  # seconds
    warning: float  # seconds before its end, at which that is told; 0: it is not


class Socket:
    def __init__(self, request: Upgrade, responding: Responding, settings: SocketSettings) -> None:
        self.id = new_id("conn")
        self._request = request
        self._responding = responding
        self._settings = settings
        self._memory = Memory(self.id, Recent(settings.cache_bytes), Steering())
        self._lanes: Lanes[Wanted] = Lanes(settings.lanes)
        self._tasks: set[asyncio.Task[None]] = set()
        self._resting = False
        self._closing = False

    @property
    def load(self) -> tuple[int, int]:
        return self._lanes.load

    async def serve(self) -> None:
        """Until it is closed, by whomever."""
        clocks = Clocks(self._settings.lifetime, self._settings.warning, self._warn, self._expire)
        try:
            while await self._take(await self._request.receive()):
                pass
        finally:
            clocks.stop()
            await self._stop()

    def rest(self) -> None:
        """The server takes no new work: close when what runs is over."""
        self._resting = True
        if self._lanes.idle:
            self._hold(self._close(SERVICE_RESTART, "The server is shutting down."))

    async def _take(self, given: AsgiMessage) -> bool:
        """Is anybody there? Nothing but this holds a message: it may be large, and the next one may come in an hour."""
        if given["type"] == "websocket.disconnect":
            return False
        lane: Lane = None
        try:
            await self._responding.check(self._request)
            body = _text(given)
            message = await _read(len(body), partial(read_message, body, self._settings.limits))
            lane = message.stream_id
            if message.kind == CREATE:
                await self._create(message)
            else:
                await self._steer(message)
        except NotAuthenticated as error:
            await self._say(socket_error(error), lane)
            await self._close(POLICY_VIOLATION, "The API key is not good any more.")
        except AntiphonError as error:
            await self._say(socket_error(error), lane)
        await asyncio.sleep(0)  # many messages may be there already, and others want their turn
        return True

    async def _create(self, message: Message) -> None:
        lane = message.stream_id
        if lane is not None and self._settings.lanes.alone:
            raise InvalidStreamId("This server has no named streams (--websocket-lanes off).", param="stream_id")
        self._lanes.check(lane)
        previous = message.raw.get("previous_response_id")
        try:
            decoded = await _read(message.size, partial(read_socket_create, message, self._settings.limits))
        except AntiphonError:
            self._memory.recent.failed(lane, previous if type(previous) is str else None)
            raise
        self._begin(self._lanes.put(lane, Wanted(decoded, lane, message.size), message.size))

    async def _steer(self, message: Message) -> None:
        answer = self._memory.steering.take(message, self._settings.limits)
        await self._say(answer.event, answer.lane)
        if answer.target is not None:
            answer.target.stop()

    def _begin(self, begun: Sequence[tuple[Lane, Wanted]]) -> None:
        for lane, wanted in begun:
            respond = self._responding.respond(self._request, wanted, self._memory, self._say)
            self._hold(respond).add_done_callback(partial(self._ended, lane))

    def _ended(self, lane: Lane, task: asyncio.Task[None]) -> None:
        self._begin(self._lanes.done(lane))
        if self._resting and self._lanes.idle:
            self.rest()

    async def _say(self, told: Struct, lane: Lane = None) -> None:
        """One message that is no event of a response. A client that is gone is noticed where it is listened to."""
        with suppress(OSError):
            await self._request.send({"type": "websocket.send", "text": texts([told], lane)[0].decode()})

    async def _close(self, code: int, reason: str) -> None:
        if not self._closing:
            self._closing = True
            with suppress(OSError):
                await self._request.send({"type": "websocket.close", "code": code, "reason": reason})

    def _warn(self, expires_at: int) -> None:
        self._hold(self._say(ConnectionExpiring(expires_at=expires_at)))

    def _expire(self) -> None:
        self._hold(self._expired())

    async def _expired(self) -> None:
        seconds = self._settings.lifetime
        error = ConnectionExpired(f"This connection is {seconds:g} seconds old, which is its limit: connect again.")
        await self._say(socket_error(error))
        await self._close(GOING_AWAY, "The connection has reached its age limit.")

    async def _stop(self) -> None:
        """Nothing goes on for a client that is gone."""
        self._lanes.clear()
        self._closing = True
        for task in [*self._tasks]:
            task.cancel()
        if self._tasks:
            await asyncio.wait([*self._tasks])

    def _hold(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _text(given: AsgiMessage) -> bytes:
    """It is taken out: large ones are not to be held twice. On our own server it is bytes already (wire.py)."""
    text: str | bytes | None = given.pop("text", None)
    if text is None:
        raise InvalidJson("Messages are JSON in text frames; this frame was a binary one.")
    return text if isinstance(text, bytes) else text.encode()


async def _read(size: int, read: Callable[[], T]) -> T:
    return read() if size <= _AT_ONCE else await asyncio.to_thread(read)
