"""Runs the application: the listening sockets, the event loop, signals and the shutdown.

    SIGTERM ─► draining: /ready 503, new work 503 ─► all work is done, or the grace period is over
            ─► running work is interrupted and sends its terminal events ─► closed
A second SIGINT skips the wait.

    SIGHUP ─► the settings are read again, without a shutdown; but if our terminal was closed, it acts as a SIGTERM
"""

import asyncio
import errno
import gc
import ipaddress
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
import uvloop

from antiphon.config import Config
from antiphon.errors import StartupError
from antiphon.transport.middleware.app import App
from antiphon.transport.process.huge_pages import collapse_heap, tune_malloc
from antiphon.transport.server.http_protocol import HttpProtocol
from antiphon.transport.server.settings import HttpServerSettings
from antiphon.transport.server.ws_protocol import WebSocketProtocol

_log = logging.getLogger(__name__)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STANDARD_STREAMS = (0, 1, 2)
_NOTSENT_LOWAT_BYTES = 128 * 1024  # unsent bytes that the kernel buffers per client; by default it takes megabytes
_CHECKED_PROTOCOLS = (HttpProtocol, WebSocketProtocol)
_NEWCOMER_POLLS = 10  # checks for the first request of new connections, after the sockets were closed
_NEWCOMER_POLL_SECONDS = 0.05
_GC_THRESHOLD = 10_000  # allocations between two collections: objects of a request are freed by reference counting
_TICKS_PER_CHECK = 5  # uvicorn's ticks, 0.1 s each, between two checks of the timeouts of all connections
_LOOP_STALL_SECONDS = 2.0  # a longer time between two checks means that the event loop was blocked

Announce = Callable[[str], None]
Address = tuple[Any, ...]  # as in the socket module: host and port, and two more values for IPv6


def serve(
    app: App, config: Config, announce: Announce | None = None, sockets: list[socket.socket] | None = None
) -> None:
    """Serve until a signal arrives.

    `announce` is called with the address once clients can connect; `sockets`: from `bind_sockets`, if they exist
    already.
    """
    sockets = sockets or bind_sockets(config)
    tune_malloc()
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
        super().__init__(HttpServerSettings(app, config, HttpProtocol, WebSocketProtocol, app.count_refusal))
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
        try:
            await super().startup(sockets)
        except OSError as error:  # another process was faster: both may bind, only one may listen
            raise _listen_error(error, *sockets[0].getsockname()[:2])
        gc.collect()
        gc.freeze()  # permanent objects: no collection has to visit them again
        collapse_heap()
        gc.set_threshold(_GC_THRESHOLD)
        self._announce(_format_address(sockets[0]))

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
        for one in (*self.servers, *(sockets or ())):
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


def reserve_port(config: Config) -> list[socket.socket]:
    """Bind sockets that never listen, to reserve the port for the worker processes.

    The first attempt is exclusive: with SO_REUSEPORT alone we would share the port with any other server of this user,
    unnoticed.
    """
    exclusive = bind_sockets(config)
    port = exclusive[0].getsockname()[1]
    for one in exclusive:
        one.close()
    return bind_sockets(config, port)


def bind_sockets(config: Config, shared_port: int | None = None) -> list[socket.socket]:
    """Bind sockets that do not listen yet: a port in use is reported before a model is loaded, and no client has to
    wait.

    `shared_port`: a port that other processes of ours bind, too; the system spreads connections over all that listen.
    """
    addresses = _resolve(config.server.host, config.server.port if shared_port is None else shared_port)
    sockets: list[socket.socket] = []
    unavailable: OSError | None = None
    for family, (address, port, *scope) in addresses:
        if sockets and not port:
            port = sockets[0].getsockname()[1]
        try:
            sockets.append(_bind(family, (address, port, *scope), shared_port is not None))
        except OSError as error:
            unavailable = error
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise _listen_error(error, config.server.host, port)
    if unavailable and not sockets:  # a host name may have IPv4 and IPv6 addresses, and the machine only one of the two
        raise _listen_error(unavailable, config.server.host, config.server.port)
    return sockets


def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, Address]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise StartupError(f"The host {host} cannot be resolved. Choose another with --host.")
    return [(family, address) for family, _, _, _, address in found]


def _bind(family: socket.AddressFamily, address: Address, shared: bool) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # accepted connections inherit it
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _NOTSENT_LOWAT_BYTES)
        if shared:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
    except OSError:
        one.close()
        raise
    return one


def _listen_error(error: OSError, host: str, port: int) -> StartupError:
    match error.errno:
        case errno.EADDRINUSE:
            return StartupError(f"Port {port} on {host} is in use. Choose another with --port; 0 takes a free one.")
        case errno.EACCES:
            return StartupError(f"Port {port} may not be used by this user. Choose one above 1023 with --port.")
        case errno.EADDRNOTAVAIL:
            return StartupError(f"{host} is not an address of this machine. Choose another with --host.")
        case _:
            return StartupError(f"Cannot listen on {host}, port {port}: {error.strerror}.")


def _format_address(one: socket.socket) -> str:
    host, port = one.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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
