"""GET /v1/responses with an upgrade: admits WebSockets, limits their number, and leaves them to WebSocketConnection."""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct, field

from antiphon.config import Config
from antiphon.errors import Unavailable
from antiphon.protocol.decoding.part_cache import PartCache
from antiphon.transport.http.channel import WEBSOCKET
from antiphon.transport.http.request import Request
from antiphon.transport.http.websocket_upgrade import WebSocketUpgrade
from antiphon.transport.middleware.auth import Authenticator
from antiphon.transport.middleware.request_tracing import RequestTracing
from antiphon.transport.middleware.routing import Route
from antiphon.transport.websocket.connection import WebSocketConnection
from antiphon.transport.websocket.response_task import ResponseTask

PATH = "/v1/responses"
_RETRY_SECONDS = 5.0  # Retry-After, when one of the open connections may be closed
_log = logging.getLogger(__name__)


class WebSocketEndpoint(Struct, frozen=True, eq=False):
    """All open WebSockets of the server."""

    _response_task: ResponseTask
    _authenticator: Authenticator
    _config: Config
    _parts: PartCache
    _open: set[WebSocketConnection] = field(default_factory=set)
    _by_key: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self._open)

    def set_tracing(self, tracing: RequestTracing) -> RequestTracing:
        self._response_task.tracing = tracing
        return tracing

    def load(self) -> tuple[int, int]:
        """Return how many responses run on all connections, and how many wait."""
        loads = [connection.load for connection in self._open]
        return sum(running for running, _ in loads), sum(waiting for _, waiting in loads)

    @Route(WEBSOCKET, PATH, new_work=True)
    async def serve(self, request: Request) -> None:
        """Responses over a WebSocket."""
        assert isinstance(request, WebSocketUpgrade)  # the method of the route guarantees it
        self._authenticator.check_websocket_origin(request)
        with self._count_connection(request.principal.key):
            connection = WebSocketConnection(request, self._response_task, self._config, self._parts)
            self._open.add(connection)
            _log.debug("A WebSocket opened.", extra={"request_id": request.id, "connection_id": connection.id})
            try:
                await request.accept()
                await connection.serve()
            finally:
                self._open.discard(connection)
                _log.debug("A WebSocket closed.", extra={"request_id": request.id, "connection_id": connection.id})

    def drain(self) -> None:
        """Let all connections close when their responses have ended: the server takes no new work."""
        for connection in [*self._open]:
            connection.drain()

    @contextmanager
    def _count_connection(self, key: str) -> Iterator[None]:
        max_per_key = self._config.server.max_websocket_connections_per_key
        if len(self._open) >= self._config.server.max_websocket_connections:
            raise Unavailable("Too many WebSockets are open (--max-websocket-connections).", retry_after=_RETRY_SECONDS)
        if max_per_key is not None and self._by_key[key] >= max_per_key:
            raise Unavailable("Too many WebSockets are open with this key.", retry_after=_RETRY_SECONDS)
        self._by_key[key] += 1
        try:
            yield
        finally:
            self._by_key[key] -= 1
            if not self._by_key[key]:
                del self._by_key[key]
