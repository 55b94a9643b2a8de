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
from functools import partial

from antiphon.config import Config
from antiphon.http_server.server import HttpServer
from antiphon.http_server.settings import ConnectionLimits, HttpServerSettings
from antiphon.operating_system import find_libc_function, new_event_loop
from antiphon.transport.http.error_responses import render_refusal
from antiphon.transport.middleware.app import App
from antiphon.transport.process.listening_sockets import bind_sockets, format_address, make_listen_error

_log = logging.getLogger(__name__)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STANDARD_STREAMS = (0, 1, 2)
_GC_THRESHOLD = 10_000  # allocations between two collections: objects of a request are freed by reference counting

Announce = Callable[[str], None]


def serve(app: App, config: Config, announce: Announce, sockets: list[socket.socket] | None = None) -> None:
    """Serve until a signal arrives.

    `announce` is called with the address once clients can connect; `sockets`: from `bind_sockets`, if they exist.
    """
    return_large_blocks()
    sockets = sockets or bind_sockets(config)
    try:
        if not all(ipaddress.ip_address(one.getsockname()[0]).is_loopback for one in sockets):
            app.authenticator.require_keys(config.server.host)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_run(ApplicationServer(app, config, announce), app, sockets))
    finally:
        for one in sockets:
            one.close()


async def _run(server: "ApplicationServer", app: App, sockets: list[socket.socket]) -> None:
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
        """Return whether there was one, and it was closed."""
        return bool(self._streams) and not any(os.isatty(number) for number in self._streams)


class ApplicationServer(HttpServer):
    """The HTTP server of the application, with its signals and its graceful shutdown."""

    def __init__(self, app: App, config: Config, announce: Announce) -> None:
        super().__init__(make_server_settings(app, config))
        self._app = app
        self._grace = config.server.shutdown_grace
        self._announce = announce
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
            self.deadline = asyncio.get_running_loop().time() + self._grace
        self.handle_exit(number, None)

    def handle_sighup(self, task: asyncio.Task[None]) -> None:
        """Reload the settings, or stop if the signal came from a terminal that is gone."""
        if self._terminal.is_gone():
            self.stop(signal.SIGTERM, task)
        elif self.started and not self.should_exit:
            self._app.lifecycle.reload()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets
        try:
            await super().startup(sockets)
        except OSError as error:  # another process was faster: both may bind, only one may listen
            raise make_listen_error(error, *sockets[0].getsockname()[:2])
        gc.collect()
        gc.freeze()  # permanent objects: no collection has to visit them again
        gc.set_threshold(_GC_THRESHOLD)
        self._announce(format_address(sockets[0]))

    def is_busy(self) -> bool:
        return self._app.lifecycle.is_busy()

    def interrupt(self) -> None:
        if running := len(self.server_state.tasks):
            _log.warning("The grace period is over; interrupting running requests: %d.", running)
        self._app.lifecycle.interrupt()


def make_server_settings(app: App, config: Config) -> HttpServerSettings:
    """Make the settings of the HTTP server. The lifespan is ours, so that startup errors stay sentences."""
    limits = ConnectionLimits(
        header_bytes=config.limits.header_bytes,
        header_seconds=config.limits.header_seconds,
        body_seconds=config.limits.body_seconds,
        keepalive_seconds=config.server.keepalive_seconds,
        stall_seconds=config.server.stall_seconds,
        websockets=config.server.websocket == "on",
        message_bytes=config.limits.body_bytes,
        ping_interval=config.server.websocket_ping_interval,
        ping_timeout=config.server.websocket_ping_timeout,
    )
    return HttpServerSettings(app, limits, on_refusal=app.count_refusal, render_refusal=render_refusal, lifespan="off")


@contextmanager
def _handle_signals(stop: Callable[[int], None], reload: Callable[[], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    callbacks: dict[int, Callable[[], None]] = {number: partial(stop, number) for number in _SIGNALS}
    if hasattr(signal, "SIGHUP"):
        callbacks[signal.SIGHUP] = reload
    removals = [_handle_signal(loop, number, callback) for number, callback in callbacks.items()]
    try:
        yield
    finally:
        for remove in removals:
            remove()


def _handle_signal(loop: asyncio.AbstractEventLoop, number: int, callback: Callable[[], None]) -> Callable[[], object]:
    """Call a function in the event loop for each signal of this number. Returns the function that ends it."""
    try:
        loop.add_signal_handler(number, callback)
    except NotImplementedError:  # Windows
        previous = signal.signal(number, lambda *_: loop.call_soon_threadsafe(callback))
        return partial(signal.signal, number, previous)
    return partial(loop.remove_signal_handler, number)


_MALLOC_PARAMETERS = (  # malloc.h
    (-3, 1024 * 1024),  # M_MMAP_THRESHOLD: fixed, instead of growing with every large block that was freed
    (-1, 3 * 1024 * 1024),  # M_TRIM_THRESHOLD
    (-8, 2),  # M_ARENA_MAX: one for the event loop, one for all other threads
)


def return_large_blocks() -> None:
    """Return large blocks to the system as soon as they are freed. Call it before threads start.

    It concerns glibc only, whose malloc by default retains more memory with every large body that it has seen, for each
    thread separately.
    """
    if (mallopt := find_libc_function("mallopt")) is not None:
        for parameter, value in _MALLOC_PARAMETERS:
            mallopt(parameter, value)
