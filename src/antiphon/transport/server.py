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
from antiphon.transport.app import App
from antiphon.transport.connection import Connection
from antiphon.transport.settings import ServerSettings
from antiphon.transport.websocket.wire import Wire

_log = logging.getLogger(__name__)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STREAMS = (0, 1, 2)
_UNSENT = 128 * 1024  # bytes that the kernel takes for a client beyond what is on its way; by itself it takes megabytes
_CLOCKED = (Connection, Wire)
_TICKS = 5  # of uvicorn's, 0.1 s each, between two looks at the clocks of all connections

Announce = Callable[[str], None]
Address = tuple[Any, ...]  # as the socket module has it: host and port, and two more for IPv6


def serve(app: App, config: Config, announce: Announce | None = None) -> None:
    """Serve until a signal comes. `announce` is told the address once clients can connect."""
    sockets = listen(config)
    try:
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


class Server(uvicorn.Server):
    def __init__(self, app: App, config: Config, announce: Announce) -> None:
        super().__init__(ServerSettings(app, config, Connection, Wire, app.count_refusal))
        self._app = app
        self._grace = config.shutdown_grace
        self._announce = announce
        self._deadline = 0.0
        self._terminals = [number for number in _STREAMS if os.isatty(number)]

    def stop(self, number: int, task: asyncio.Task[None]) -> None:
        if not self.started:
            self.should_exit = True
            task.cancel()  # while engines load there is nothing to drain
            return
        if not self.should_exit:
            self._app.guard.close()
            self._app.lifecycle.rest()
            self._deadline = asyncio.get_running_loop().time() + self._grace
        self.handle_exit(number, None)

    def hang_up(self, task: asyncio.Task[None]) -> None:
        """An operator's word, or that of a terminal that is gone."""
        if self._terminals and not any(os.isatty(number) for number in self._terminals):
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
        self._announce(_address(sockets[0]))

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, _CLOCKED):
                    connection.check(now)
        return await super().on_tick(counter) and self._is_drained()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.lifecycle.interrupt()
        await super().shutdown(sockets)

    def _is_drained(self) -> bool:
        overdue = asyncio.get_running_loop().time() >= self._deadline
        return self.force_exit or overdue or not (self.server_state.tasks or self._app.lifecycle.busy())


def listen(config: Config) -> list[socket.socket]:
    """Bound sockets that do not listen yet: a port in use is told before a model is loaded, and nobody is let wait."""
    addresses = _resolve(config.host, config.port)
    if not config.api_key and not all(ipaddress.ip_address(address[0]).is_loopback for _, address in addresses):
        raise StartupError(
            f"Listening on {config.host} would let others than this machine in; that needs an API key. "
            "Give one with --api-key, or listen on 127.0.0.1."
        )
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    for family, (address, port, *scope) in addresses:
        if sockets and not port:
            port = sockets[0].getsockname()[1]
        try:
            sockets.append(_bind(family, (address, port, *scope)))
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


def _bind(family: socket.AddressFamily, address: Address) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # connections have it from who accepts them
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
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
