"""Runs the application: the event loop, signals and the shutdown.

    SIGTERM ─► draining: /ready 503, new work 503 ─► all work is done, or the grace period is over
            ─► running work is interrupted and sends its terminal events ─► closed
A second SIGINT skips the wait.

    SIGHUP ─► the settings are read again, without a shutdown; but if our terminal was closed, it acts as a SIGTERM
"""

import asyncio
import gc
import ipaddress
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
import uvloop

from antiphon.config import Config
from antiphon.transport.middleware.app import App
from antiphon.transport.process.listening_sockets import bind_sockets, format_address, make_listen_error
from antiphon.transport.process.malloc import return_large_blocks
from antiphon.transport.server.http_protocol import HttpProtocol
from antiphon.transport.server.listener import Listener
from antiphon.transport.server.settings import HttpServerSettings
from antiphon.transport.server.ws_protocol import WebSocketProtocol

_log = logging.getLogger(__name__)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STANDARD_STREAMS = (0, 1, 2)
_CHECKED_PROTOCOLS = (HttpProtocol, WebSocketProtocol)
_NEWCOMER_POLLS = 10  # checks for the first request of new connections, after the sockets were closed
_NEWCOMER_POLL_SECONDS = 0.05
_GC_THRESHOLD = 10_000  # allocations between two collections: objects of a request are freed by reference counting
_TICKS_PER_CHECK = 5  # uvicorn's ticks, 0.1 s each, between two checks of the timeouts of all connections
_LOOP_STALL_SECONDS = 2.0  # a longer time between two checks means that the event loop was blocked

Announce = Callable[[str], None]


def serve(
    app: App, config: Config, announce: Announce | None = None, sockets: list[socket.socket] | None = None
) -> None:
    """Serve until a signal arrives.

    `announce` is called with the address once clients can connect; `sockets`: from `bind_sockets`, if they exist
    already.
    """
    return_large_blocks()
    sockets = sockets or bind_sockets(config)
    try:
        if not all(ipaddress.ip_address(one.getsockname()[0]).is_loopback for one in sockets):
            app.authenticator.require_keys(config.server.host)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(HttpServer(app, config, announce or _announce), app, sockets))
    finally:
        for one in sockets:
            one.close()


async def _run(server: "HttpServer", app: App, sockets: list[socket.socket]) -> None:
    task = asyncio.current_task()
    assert task is not None
    with _handle_signals(lambda number: server.stop(number, task), lambda: server.handle_sighup(task)):
        try:
            await app.lifecycle.open()
            await server.serve(sockets)
        except asyncio.CancelledError:
            if not server.should_exit:
                raise
        finally:
            await app.lifecycle.close()


class Terminal:
    """The terminal that the process was started at, if any."""

    def __init__(self) -> None:
        self._streams = [number for number in _STANDARD_STREAMS if os.isatty(number)]

    def is_gone(self) -> bool:
        """Whether there was one, and it was closed."""
        return bool(self._streams) and not any(os.isatty(number) for number in self._streams)


class HttpServer(uvicorn.Server):
    """uvicorn's server with our own signals, timeouts and graceful shutdown."""

    def __init__(self, app: App, config: Config, announce: Announce) -> None:
        self._settings = HttpServerSettings(app, config, HttpProtocol, WebSocketProtocol, app.count_refusal)
        super().__init__(self._settings)
        self._listeners: list[Listener] = []
        self._app = app
        self._grace = config.server.shutdown_grace
        self._announce = announce
        self._deadline = 0.0
        self._checked_at = 0.0
        self._terminal = Terminal()

    def stop(self, number: int, task: asyncio.Task[None]) -> None:
        """Start the graceful shutdown, or cancel the startup."""
        if not self.started:
            self.should_exit = True
            task.cancel()  # while engines load there is nothing to drain
            return
        if not self.should_exit:
            _log.info("Shutting down: no new work is accepted; running requests have %g seconds to end.", self._grace)
            self._app.authenticator.close()
            self._app.lifecycle.drain()
            self._deadline = asyncio.get_running_loop().time() + self._grace
        self.handle_exit(number, None)

    def handle_sighup(self, task: asyncio.Task[None]) -> None:
        """Reload the settings, or stop if the signal came from a terminal that is gone."""
        if self._terminal.is_gone():
            self.stop(signal.SIGTERM, task)
        elif self.started and not self.should_exit:
            self._app.lifecycle.reload()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are handled in `_run`. uvicorn would raise the signal again at the end and die of it."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets
        self._listeners = [Listener(one, self._create_protocol) for one in sockets]
        try:
            for listener in self._listeners:
                listener.start(self.config.backlog)
        except OSError as error:  # another process was faster: both may bind, only one may listen
            raise make_listen_error(error, *sockets[0].getsockname()[:2])
        self.servers, self.started = [], True
        gc.collect()
        gc.freeze()  # permanent objects: no collection has to visit them again
        gc.set_threshold(_GC_THRESHOLD)
        self._announce(format_address(sockets[0]))

    def _create_protocol(self) -> asyncio.Protocol:
        return HttpProtocol(self._settings, self.server_state, {})

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_PER_CHECK == 0:
            self._check_connections(asyncio.get_running_loop().time())
        return await super().on_tick(counter) and self._is_drained()

    def _check_connections(self, now: float) -> None:
        """Check the timeouts of all connections, unless the event loop was blocked: received data is not read yet
        then.
        """
        is_stalled, self._checked_at = now - self._checked_at > _LOOP_STALL_SECONDS, now
        for connection in () if is_stalled else list(self.server_state.connections):
            if isinstance(connection, _CHECKED_PROTOCOLS):
                connection.check(now)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for one in self._listeners:
            one.close()
        await self._wait_for_newcomers()
        if running := len(self.server_state.tasks):
            _log.warning("The grace period is over; interrupting running requests: %d.", running)
        self._app.lifecycle.interrupt()
        await super().shutdown(sockets)

    async def _wait_for_newcomers(self) -> None:
        """Wait for the requests of clients that have just connected, so that they are answered; uvicorn would
        disconnect them.
        """
        for _ in range(_NEWCOMER_POLLS):
            if self.force_exit:
                return
            await asyncio.sleep(_NEWCOMER_POLL_SECONDS)
            if not any(getattr(one, "exchange", one) is None for one in self.server_state.connections):
                return

    def _is_drained(self) -> bool:
        overdue = asyncio.get_running_loop().time() >= self._deadline
        return self.force_exit or overdue or not (self.server_state.tasks or self._app.lifecycle.is_busy())


def _announce(address: str) -> None:
    _log.info("Listening on %s", address)


@contextmanager
def _handle_signals(stop: Callable[[int], None], reload: Callable[[], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    for one in _SIGNALS:
        loop.add_signal_handler(one, stop, one)
    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        for one in (*_SIGNALS, signal.SIGHUP):
            loop.remove_signal_handler(one)
