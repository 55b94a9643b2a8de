"""The place of one worker process, whoever has it: its sockets, which outlive it, and when the next one is due.

empty ──start──▶ taken ──it ended──▶ empty, and due after a pause ──start──▶ …
"""

import logging
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection

import msgspec
from msgspec import Struct

_log = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # that a parent passes on

FIRST_REST = 0.2
LONGEST_REST = 10.0
HEALTHY_SECONDS = 60.0  # who lived as long, or was told to stop, is replaced after the first pause
PATIENCE = 1.0  # of a longer pause: who connects then goes to other workers

# Of a worker, by its number: with whom it tells its news, and whom it asks what is left of limits.
Life = Callable[[int, connection.Connection, connection.Connection], None]


class News(Struct, frozen=True, kw_only=True):
    """What a worker tells its parent: that it is up, or why it cannot be."""

    address: str = ""
    models: list[str] = []
    sentence: str = ""


class Seat:
    """The place of one worker, whoever has it."""

    def __init__(self, number: int, live: Life, bind: Callable[[], list[socket.socket]]) -> None:
        self.number = number
        self.sockets: list[socket.socket] = []
        self.due: float | None = None  # when the next one is to be started, if nobody has it
        self.sentence = ""
        self.up = False
        self._live = live
        self._bind = bind
        self._process: multiprocessing.process.BaseProcess | None = None
        self._ear: connection.Connection | None = None
        self._desk: connection.Connection | None = None
        self._began = 0.0
        self._rest = FIRST_REST

    @property
    def taken(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid or 0

    @property
    def ears(self) -> list["int | connection.Connection"]:
        """What is ready when there is something to look at."""
        found: list[int | connection.Connection] = [] if self._process is None else [self._process.sentinel]
        return [*found, *(one for one in (self._ear, self._desk) if one is not None)]

    def start(self) -> None:
        if self._ear is not None:
            self._ear.close()
        self._ear, mouth = multiprocessing.Pipe(duplex=False)
        self._close_desk()
        self._desk, till = multiprocessing.Pipe()
        self._began, self.sentence, self.due, self.up = time.monotonic(), "", None, False
        self.sockets = self.sockets or self._bind()
        process = multiprocessing.get_context("fork").Process(target=self._live, args=(self.number, mouth, till))
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # what comes before the child can hear it is kept for it
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        mouth.close()
        till.close()
        self._process = process

    def news(self) -> News | None:
        if self._ear is None or not self._ear.poll():
            return None
        try:
            return msgspec.json.decode(self._ear.recv_bytes(), type=News)
        except EOFError:
            self._ear.close()
            self._ear = None
            return None

    def serve(self, answer: Callable[[int, bytes], bytes]) -> None:
        """One question at a time is asked; its answer fits into the pipe, whether or not somebody reads it."""
        try:
            while self._desk is not None and self._desk.poll():
                self._desk.send_bytes(answer(self.number, self._desk.recv_bytes()))
        except (EOFError, OSError, msgspec.MsgspecError):  # whatever a worker does, its parent lives
            self._close_desk()

    def ended(self) -> int | None:
        """Its code, once, if it has."""
        if self._process is None or self._process.exitcode is None:
            return None
        code = self._process.exitcode
        self._process.close()
        self._process = None
        lived = time.monotonic() - self._began
        pause = FIRST_REST if code == 0 or lived > HEALTHY_SECONDS else self._rest
        self.due, self._rest = time.monotonic() + pause, min(pause * 2, LONGEST_REST)
        if pause > PATIENCE:
            self.close()  # nobody is to wait for one that does not live
        return code

    def close(self) -> None:
        """Its doors."""
        for one in self.sockets:
            one.close()
        self.sockets = []

    def leave(self) -> None:
        """By a worker, which inherits what is its parent's."""
        self._close_desk()

    def rest(self) -> float:
        return 0.0 if self.due is None else max(0.0, self.due - time.monotonic())

    def signal(self, number: int) -> None:
        if self.taken:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        if self.taken:
            _log.warning("worker %d did not end in time and is killed", self.number)
            self.signal(signal.SIGKILL)

    def end(self) -> None:
        """However we got here, nobody is left behind."""
        self.close()
        self._close_desk()
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.join()

    def _close_desk(self) -> None:
        if self._desk is not None:
            self._desk.close()
            self._desk = None
