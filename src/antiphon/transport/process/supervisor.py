"""Several worker processes on one port, and a parent that starts, watches and stops them. It serves nobody itself.

    the first worker ── it is up ──▶ the others ── one died ──▶ a pause ──▶ another one in its place
          └── it cannot start ──▶ the end
    SIGINT, SIGTERM, SIGHUP ──▶ to all of them; after the first two, nobody is started any more

Each has sockets of its own (SO_REUSEPORT), over which the system spreads the connections. The parent keeps them open:
who connects while a worker is being replaced waits for the next one. A worker whose parent is gone stops as if it had
been told to. The parent keeps what workers count together: a board for /metrics, and a drawer for limits.

The place of one worker process, whoever has it: its sockets, which outlive it, and when the next one is due.

empty ──start──▶ taken ──it ended──▶ empty, and due after a pause ──start──▶ …
"""

import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import connection

import msgspec
from msgspec import Struct

from antiphon.config import Config
from antiphon.errors import StartupError
from antiphon.observe.multiprocess import Board
from antiphon.stores.live.base import Till
from antiphon.stores.live.worker_limits import Drawer, ParentTill
from antiphon.stores.registry import named
from antiphon.transport.process.server import Terminal, listen, reserve

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


_EMBEDDED = "llamacpp"

NOT_STARTED = 2
LAST_WORDS = 10.0  # seconds beyond the grace, in which what ends has its last writes; then it is killed

Announce = Callable[[str, list[str]], None]


class Place(Struct, frozen=True, kw_only=True):
    """Where a worker is: its number, from 1 on, the sockets it listens on, whom it tells that it is up, and what it
    shares with the others: a board for what was counted, and what is left of limits."""

    number: int
    sockets: list[socket.socket] = []
    announce: Announce
    board: Board
    till: Till


Work = Callable[[Place], None]


def check(config: Config) -> None:
    """Whether these settings allow for several workers. Raises StartupError."""
    if named(config.store_place)[0] == "memory":
        raise StartupError("Several workers need a store that they share, a file or postgresql://…: see --store.")
    if any(spec.kind == _EMBEDDED for spec in config.specs):
        raise StartupError(
            "Each of several workers would load the model into its own memory: leave --workers at 1, or have one "
            "llama-server for all of them, with --engine llamacpp-server://HOST:PORT."
        )


class Workers:
    def __init__(self, config: Config, work: Work, announce: Announce) -> None:
        self._grace = config.shutdown_grace + LAST_WORDS
        self._reserved = reserve(config)  # the port is ours, whoever comes and goes
        self._announce: Announce | None = announce
        self._terminal = Terminal()
        self._board = Board(config.workers)
        self._drawer = Drawer()
        self._alone, self._hold = os.pipe()  # nobody else has the latter: who reads the former hears of our death
        self._wake, self._woken = socket.socketpair()
        port: int = self._reserved[0].getsockname()[1]
        live = partial(self._live, work)
        self._seats = [Seat(number, live, partial(listen, config, port)) for number in range(1, config.workers + 1)]
        self._deadline: float | None = None  # set when we were told to stop
        self._read_again = False  # the settings have changed since we read them

    def run(self) -> None:
        """Until a signal comes and all have ended. StartupError if the first cannot start."""
        with self._hearing_signals():
            try:
                self._seats[0].start()
                while self._deadline is None or any(seat.taken for seat in self._seats):
                    self._attend()
            finally:
                for seat in self._seats:
                    seat.end()
                for one in (*self._reserved, self._wake, self._woken):
                    one.close()
                os.close(self._hold)
                os.close(self._alone)

    def _attend(self) -> None:
        """Wait for the next thing to happen, and see to it."""
        ears = [ear for seat in self._seats for ear in seat.ears]
        connection.wait([self._wake, *ears], self._pause())
        for number in self._signalled():
            self._pass_on(number)
        for seat in self._seats:
            self._look(seat)
        self._see_to_time()

    def _look(self, seat: Seat) -> None:
        code = seat.ended()
        while (news := seat.news()) is not None:
            self._hear(seat, news)
        seat.serve(self._drawer.answer)
        if code is None:
            return
        self._drawer.forget(seat.number)
        if self._deadline is not None:
            seat.close()  # who connects goes to those that are left
        elif self._announce is not None:
            raise StartupError(seat.sentence or f"A worker died with code {code} while it started.")
        else:
            why = seat.sentence or f"code {code}"
            _log.warning("worker %d ended (%s) and is replaced in %.1f s", seat.number, why, seat.rest())

    def _hear(self, seat: Seat, news: News) -> None:
        if news.sentence:
            seat.sentence = news.sentence
            return
        seat.up = True
        _log.info("worker %d is up, process %d", seat.number, seat.pid)
        if self._read_again:
            seat.signal(signal.SIGHUP)
        if self._announce is not None:
            self._announce(news.address, news.models)
            self._announce = None
            for other in self._seats[1:]:
                other.due = 0.0

    def _see_to_time(self) -> None:
        now = time.monotonic()
        if self._deadline is None:
            for seat in self._seats:
                if not seat.taken and seat.due is not None and now >= seat.due:
                    seat.start()
        elif now >= self._deadline:
            self._deadline = now + self._grace
            for seat in self._seats:
                seat.kill()

    def _pause(self) -> float | None:
        """Seconds until something is due; None: nothing is."""
        if self._deadline is not None:
            due = [self._deadline]
        else:
            due = [seat.due for seat in self._seats if not seat.taken and seat.due is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _pass_on(self, number: int) -> None:
        if number == signal.SIGHUP and self._terminal.gone():
            number = signal.SIGTERM
        if number == signal.SIGHUP:
            self._read_again = True  # also by those who come later, since they begin with what we have read
        elif self._deadline is None:
            self._deadline = time.monotonic() + self._grace
        for seat in self._seats:
            if seat.up or number != signal.SIGHUP:
                seat.signal(number)

    def _signalled(self) -> Iterator[int]:
        with suppress(BlockingIOError):
            yield from self._wake.recv(64)

    @contextmanager
    def _hearing_signals(self) -> Iterator[None]:
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        before = {one: signal.signal(one, _only_wake) for one in SIGNALS}
        fd = signal.set_wakeup_fd(self._woken.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(fd)
            for one, was in before.items():
                signal.signal(one, was)

    def _live(self, work: Work, number: int, mouth: connection.Connection, till: connection.Connection) -> None:
        """The life of a worker, in its own process."""
        signal.set_wakeup_fd(-1)
        for one in SIGNALS:
            signal.signal(one, signal.SIG_DFL)
        os.setpgid(0, 0)  # or a Ctrl-C would reach it twice: from the terminal, and from its parent
        self._leave_behind(number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        threading.Thread(target=_stop_when_alone, args=(self._alone,), daemon=True, name="parent").start()

        def tell(address: str, models: list[str]) -> None:
            mouth.send_bytes(msgspec.json.encode(News(address=address, models=models)))

        sockets, shared = self._seats[number - 1].sockets, ParentTill(till)
        try:
            work(Place(number=number, sockets=sockets, announce=tell, board=self._board, till=shared))
        except StartupError as error:
            mouth.send_bytes(msgspec.json.encode(News(sentence=str(error))))
            sys.exit(NOT_STARTED)

    def _leave_behind(self, number: int) -> None:
        """What a worker inherits that is not its own."""
        os.close(self._hold)
        for one in (*self._reserved, self._wake, self._woken):
            one.close()
        for seat in self._seats:
            seat.leave()
            if seat.number != number:
                seat.close()


def _only_wake(number: int, frame: object) -> None:
    """The number itself comes by the socket that wakes us."""


def _stop_when_alone(alone: int) -> None:
    os.read(alone, 1)
    os.kill(os.getpid(), signal.SIGTERM)
