"""Serves an ASGI application on listening sockets: accepts connections, checks their timeouts, and shuts down.

should_exit ─► draining: connections and requests go on ─► all work is done, or the deadline has passed
            ─► interrupted: running requests send their last data ─► closed

Connections are accepted in batches. libuv accepts one per iteration of the event loop (libuv pull request 3696): under
load an iteration takes milliseconds, and of many clients that connect at once the last one would wait for as many
iterations.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import uvicorn

from antiphon.http_server.http_protocol import HttpProtocol
from antiphon.http_server.settings import HttpServerSettings
from antiphon.http_server.ws_protocol import WebSocketProtocol

_MAX_BATCH = 64  # connections accepted in one iteration of the event loop
_PAUSE_SECONDS = 1.0  # after an error that other connections have to resolve by closing
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_log = logging.getLogger(__name__)


class Listener:
    """A listening socket, and the protocols of the connections that it accepts."""

    def __init__(self, sock: socket.socket, create_protocol: Callable[[], asyncio.Protocol]) -> None:
        self._socket = sock
        self._create_protocol = create_protocol
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._opening: set[asyncio.Task[None]] = set()

    def start(self, backlog: int) -> None:
        """Listen, and accept from now on. Raises OSError if another process listens on the address."""
        self._socket.listen(backlog)
        self._socket.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Close the socket. Connections stay open, also those that wait to be accepted."""
        if self._timer is not None:
            self._timer.cancel()
        self._accept_batch()
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _resume(self) -> None:
        self._timer = None
        self._loop.add_reader(self._socket, self._accept_batch)

    def _accept_batch(self) -> None:
        for _ in range(_MAX_BATCH):
            try:
                accepted, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause(error)
                    return
                continue  # the client has closed the connection already (ECONNABORTED and others, accept(2))
            task = self._loop.create_task(self._open(accepted))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def _pause(self, error: OSError) -> None:
        _log.error("New connections have to wait: %s. Raise the limit of open files (ulimit -n).", error.strerror)
        self._loop.remove_reader(self._socket)
        self._timer = self._loop.call_later(_PAUSE_SECONDS, self._resume)

    async def _open(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        with suppress(OSError):  # the client is gone
            await self._loop.connect_accepted_socket(self._create_protocol, accepted)


_CHECKED_PROTOCOLS = (HttpProtocol, WebSocketProtocol)
_NEWCOMER_POLLS = 10  # checks for the first request of new connections, after the sockets were closed
_NEWCOMER_POLL_SECONDS = 0.05
_TICKS_PER_CHECK = 5  # uvicorn's ticks, 0.1 s each, between two checks of the timeouts of all connections
_LOOP_STALL_SECONDS = 2.0  # a longer time between two checks means that the event loop was blocked


class HttpServer(uvicorn.Server):
    """uvicorn's main loop, with our own protocols, listeners, timeouts and graceful shutdown.

    A subclass may override `is_busy` and `interrupt`, and set `deadline` when it sets `should_exit`.
    """

    def __init__(self, settings: HttpServerSettings) -> None:
        super().__init__(settings)
        self.settings = settings
        self.deadline = 0.0  # when requests are interrupted, by the clock of the loop
        self._checked_at = 0.0
        self._listeners: list[Listener] = []

    def is_busy(self) -> bool:
        """Return whether the application has work that no client waits for."""
        return False

    def interrupt(self) -> None:
        """Called when the deadline has passed: running requests have to end."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the caller's. uvicorn would raise the signal again at the end and die of it."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on bound sockets. Raises OSError if another process listens on an address."""
        assert sockets
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise RuntimeError("The application failed to start; its log says why.")
        self._listeners = [Listener(one, self._create_protocol) for one in sockets]
        for listener in self._listeners:
            listener.start(self.config.backlog)
        self.servers, self.started = [], True

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_PER_CHECK == 0:
            self.check_connections(asyncio.get_running_loop().time())
        return await super().on_tick(counter) and self._is_drained()

    def check_connections(self, now: float) -> None:
        """Check the timeouts of all connections, unless the event loop was blocked and data is still unread."""
        is_stalled, self._checked_at = now - self._checked_at > _LOOP_STALL_SECONDS, now
        for connection in () if is_stalled else list(self.server_state.connections):
            if isinstance(connection, _CHECKED_PROTOCOLS):
                connection.check(now)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in self._listeners:
            listener.close()
        await self._wait_for_newcomers()
        self.interrupt()
        await super().shutdown(sockets)

    def _create_protocol(self) -> asyncio.Protocol:
        return HttpProtocol(self.settings, self.server_state, self.lifespan.state)

    async def _wait_for_newcomers(self) -> None:
        """Wait for the requests of clients that have just connected; uvicorn would disconnect them unanswered."""
        for _ in range(_NEWCOMER_POLLS):
            if self.force_exit:
                return
            await asyncio.sleep(_NEWCOMER_POLL_SECONDS)
            if not any(getattr(one, "exchange", one) is None for one in self.server_state.connections):
                return

    def _is_drained(self) -> bool:
        overdue = asyncio.get_running_loop().time() >= self.deadline
        return self.force_exit or overdue or not (self.server_state.tasks or self.is_busy())
