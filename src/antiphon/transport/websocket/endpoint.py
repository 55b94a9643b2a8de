"""GET /v1/responses, upgraded: who is let in, and how many. What goes on inside is the socket's."""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from antiphon.errors import Unavailable
from antiphon.transport.http.request import WEBSOCKET, Request, Route
from antiphon.transport.middleware.auth import Guard
from antiphon.transport.middleware.request_tracing import Watching
from antiphon.transport.server.ws_upgrade import Upgrade
from antiphon.transport.websocket.connection import Socket, SocketSettings
from antiphon.transport.websocket.response_task import Responding

PATH = "/v1/responses"
_LATER = 5.0  # seconds, after which one of many connections may be gone
_log = logging.getLogger(__name__)


class ConnectionBounds(Struct, frozen=True, kw_only=True):
    all: int = 100
    per_key: int | None = None


class WebSocketEndpoint:
    def __init__(
        self, responding: Responding, guard: Guard, settings: SocketSettings, bounds: ConnectionBounds
    ) -> None:
        self._responding = responding
        self._guard = guard
        self._settings = settings
        self._bounds = bounds
        self._open: set[Socket] = set()
        self._by_key: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def watch(self, watching: Watching) -> Watching:
        self._responding.watching = watching
        return watching

    def load(self) -> tuple[int, int]:
        """How many responses run on all of them, and how many wait."""
        loads = [socket.load for socket in self._open]
        return sum(running for running, _ in loads), sum(waiting for _, waiting in loads)

    def route(self) -> Route:
        return Route(
            method=WEBSOCKET, path=PATH, endpoint=self.serve, summary="Responses over a WebSocket", new_work=True
        )

    async def serve(self, request: Request) -> None:
        assert isinstance(request, Upgrade)  # as the router knows it
        self._guard.check_socket(request)
        with self._counted(request.principal.key):
            socket = Socket(request, self._responding, self._settings)
            self._open.add(socket)
            _log.debug("A WebSocket opened.", extra={"request_id": request.id, "connection_id": socket.id})
            try:
                await request.accept()
                await socket.serve()
            finally:
                self._open.discard(socket)
                _log.debug("A WebSocket closed.", extra={"request_id": request.id, "connection_id": socket.id})

    def rest(self) -> None:
        """The server takes no new work."""
        for socket in [*self._open]:
            socket.rest()

    @contextmanager
    def _counted(self, key: str) -> Iterator[None]:
        bounds = self._bounds
        if len(self._open) >= bounds.all:
            raise Unavailable("Too many WebSockets are open (--max-websocket-connections).", retry_after=_LATER)
        if bounds.per_key is not None and self._by_key[key] >= bounds.per_key:
            raise Unavailable("Too many WebSockets are open with this key.", retry_after=_LATER)
        self._by_key[key] += 1
        try:
            yield
        finally:
            self._by_key[key] -= 1
            if not self._by_key[key]:
                del self._by_key[key]
