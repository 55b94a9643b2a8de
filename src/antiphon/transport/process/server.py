"""Runs the application: the listening sockets, the event loop, signals and the way down.

    SIGTERM ─► doors closed: /ready 503, new work 503 ─► all is done, or the grace is over
            ─► what still runs is interrupted and has its last words ─► closed
A second SIGINT does not wait.

    SIGHUP ─► the settings are read again, without any of this; but if our terminal was closed, it is a SIGTERM
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
from antiphon.transport.process.huge_pages import give_back_what_is_large, join_what_stays
from antiphon.transport.server.http_protocol import Connection
from antiphon.transport.server.settings import ServerSettings
from antiphon.transport.server.ws_protocol import Wire

_log = logging.getLogger(__name__)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STREAMS = (0, 1, 2)
_UNSENT = 128 * 1024  # bytes that the kernel takes for a client beyond what is on its way; by itself it takes megabytes
_CLOCKED = (Connection, Wire)
_LAST_LOOKS = 10  # for who has just connected, after the doors were closed
_LOOK_SECONDS = 0.05
_YOUNG = 10_000  # objects between two collections: what a request makes goes with it, and needs none
_TICKS = 5  # of uvicorn's, 0.1 s each, between two looks at the clocks of all connections
_HELD_UP = 2.0  # seconds between two looks

Announce = Callable[[str], None]
Address = tuple[Any, ...]  # as the socket module has it: host and port, and two more for IPv6


def serve(
    app: App, config: Config, announce: Announce | None = None, sockets: list[socket.socket] | None = None
) -> None:
    """Serve until a signal comes. `announce` is told the address once clients can connect; `sockets`: as `listen` gives
    them, if there are some."""
    sockets = sockets or listen(config)
    give_back_what_is_large()
    try:
        if not all(ipaddress.ip_address(one.getsockname()[0]).is_loopback for one in sockets):
            app.guard.expose(config.host)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_live(Server(app, config, announce or _announce), app, sockets))
    finally:
        for one in sockets:
            one.close()


async def _live(server: "Server", app: App, sockets: list[socket.socket]) -> None:
    task = asyncio.current_task()
    assert task is not None
    with _on_signals(lambda number: server.stop(number, task), lambda: server.hang_up(task)):
        try:
            await app.lifecycle.open()
            await server.serve(sockets)
        except asyncio.CancelledError:
            if not server.should_exit:
                raise
        finally:
            await app.lifecycle.close()


class Terminal:
    """The one that we were started at, if any."""

    def __init__(self) -> None:
        self._streams = [number for number in _STREAMS if os.isatty(number)]

    def gone(self) -> bool:
        """Whether there was one, and it was closed."""
        return bool(self._streams) and not any(os.isatty(number) for number in self._streams)


class Server(uvicorn.Server):
    def __init__(self, app: App, config: Config, announce: Announce) -> None:
        super().__init__(ServerSettings(app, config, Connection, Wire, app.count_refusal))
        self._app = app
        self._grace = config.shutdown_grace
        self._announce = announce
        self._deadline = 0.0
        self._looked = 0.0
        self._terminal = Terminal()

    def stop(self, number: int, task: asyncio.Task[None]) -> None:
        if not self.started:
            self.should_exit = True
            task.cancel()  # while engines load there is nothing to drain
            return
        if not self.should_exit:
            _log.info("Told to stop: nothing new is taken, and what runs has %g seconds to end.", self._grace)
            self._app.guard.close()
            self._app.lifecycle.rest()
            self._deadline = asyncio.get_running_loop().time() + self._grace
        self.handle_exit(number, None)

    def hang_up(self, task: asyncio.Task[None]) -> None:
        """An operator's word, or that of a terminal that is gone."""
        if self._terminal.gone():
            self.stop(signal.SIGTERM, task)
        elif self.started and not self.should_exit:
            self._app.lifecycle.reload()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ours are caught in `_live`. uvicorn would die of the signal in the end; we were told to stop and did."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets
        try:
            await super().startup(sockets)
        except OSError as error:  # another process was faster: both may bind, one may listen
            raise _cannot_listen(error, *sockets[0].getsockname()[:2])
        gc.collect()
        gc.freeze()  # what is there now stays; no collection has to look at it again
        join_what_stays()
        gc.set_threshold(_YOUNG)
        self._announce(_address(sockets[0]))

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS == 0:
            self._look(asyncio.get_running_loop().time())
        return await super().on_tick(counter) and self._is_drained()

    def _look(self, now: float) -> None:
        """At the clocks of all connections, unless we were held up ourselves: what came meanwhile was not read yet."""
        held_up, self._looked = now - self._looked > _HELD_UP, now
        for connection in () if held_up else list(self.server_state.connections):
            if isinstance(connection, _CLOCKED):
                connection.check(now)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for one in (*self.servers, *(sockets or ())):
            one.close()
        await self._hear_newcomers()
        if left := len(self.server_state.tasks):
            _log.warning("What is still running is ended now, requests: %d.", left)
        self._app.lifecycle.interrupt()
        await super().shutdown(sockets)

    async def _hear_newcomers(self) -> None:
        """Who had just connected and not asked anything yet is answered too; uvicorn would hang up."""
        for _ in range(_LAST_LOOKS):
            if self.force_exit:
                return
            await asyncio.sleep(_LOOK_SECONDS)
            if not any(getattr(one, "cycle", one) is None for one in self.server_state.connections):
                return

    def _is_drained(self) -> bool:
        overdue = asyncio.get_running_loop().time() >= self._deadline
        return self.force_exit or overdue or not (self.server_state.tasks or self._app.lifecycle.busy())


def reserve(config: Config) -> list[socket.socket]:
    """Bound sockets for nobody to listen on, while several processes of ours do so on others. First without sharing:
    else we would share the port with any other server of this user, unnoticed."""
    alone = listen(config)
    port = alone[0].getsockname()[1]
    for one in alone:
        one.close()
    return listen(config, port)


def listen(config: Config, shared: int | None = None) -> list[socket.socket]:
    """Bound sockets that do not listen yet: a port in use is told before a model is loaded, and nobody is let wait.
    `shared`: the port that other processes of ours have too; connections are spread over all that listen."""
    addresses = _resolve(config.host, config.port if shared is None else shared)
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    for family, (address, port, *scope) in addresses:
        if sockets and not port:
            port = sockets[0].getsockname()[1]
        try:
            sockets.append(_bind(family, (address, port, *scope), shared is not None))
        except OSError as error:
            missing = error
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise _cannot_listen(error, config.host, port)
    if missing and not sockets:  # a machine may have but one of a name's two kinds of address
        raise _cannot_listen(missing, config.host, config.port)
    return sockets


def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, Address]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise StartupError(f"The host {host} is not known. Choose another with --host.")
    return [(family, address) for family, _, _, _, address in found]


def _bind(family: socket.AddressFamily, address: Address, shared: bool) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # connections have it from who accepts them
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
        if shared:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
    except OSError:
        one.close()
        raise
    return one


def _cannot_listen(error: OSError, host: str, port: int) -> StartupError:
    match error.errno:
        case errno.EADDRINUSE:
            return StartupError(f"Port {port} on {host} is in use. Choose another with --port; 0 takes a free one.")
        case errno.EACCES:
            return StartupError(f"Port {port} may not be used by this user. Choose one above 1023 with --port.")
        case errno.EADDRNOTAVAIL:
            return StartupError(f"{host} is not an address of this machine. Choose another with --host.")
        case _:
            return StartupError(f"Listening on {host}, port {port}, is not possible: {error.strerror}.")


def _address(one: socket.socket) -> str:
    host, port = one.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _announce(address: str) -> None:
    _log.info("Listening on %s", address)


@contextmanager
def _on_signals(stop: Callable[[int], None], hang_up: Callable[[], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    for one in _SIGNALS:
        loop.add_signal_handler(one, stop, one)
    loop.add_signal_handler(signal.SIGHUP, hang_up)
    try:
        yield
    finally:
        for one in (*_SIGNALS, signal.SIGHUP):
            loop.remove_signal_handler(one)
