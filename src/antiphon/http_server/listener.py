"""Accepts the connections of a listening socket in batches.

libuv accepts one connection per iteration of the event loop (libuv pull request 3696). Under load an iteration takes
milliseconds, and of many clients that connect at once the last one would wait for as many iterations.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

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
