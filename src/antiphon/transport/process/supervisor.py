"""Several worker processes on one port, and a parent that starts, monitors and stops them. The parent serves no
requests.

    the first worker ── it is up ──▶ the others ── one died ──▶ a pause ──▶ a replacement
          └── it cannot start ──▶ the end
    SIGINT, SIGTERM, SIGHUP ──▶ forwarded to all workers; after the first two, none is started any more

Each worker has sockets of its own (SO_REUSEPORT), over which the system spreads the connections. The parent holds them
open: a client that connects while a worker is being replaced waits for the next one. A worker whose parent is gone
stops as if it had got a SIGTERM. The parent holds the state that workers share: memory pages for /metrics, and the
server of the rate limits.

A WorkerSlot is the position of one worker: its sockets, which outlive the process, and the time at which the next
process is due.

    empty ──start──▶ running ──process ended──▶ empty, and due after a pause ──start──▶ …
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
from antiphon.observe.multiprocess import SharedPages
from antiphon.stores.live.base import SharedLimits
from antiphon.stores.live.worker_limits import LimitServer, ParentLimits
from antiphon.stores.registry import parse_location
from antiphon.transport.process.listening_sockets import bind_sockets, reserve_port
from antiphon.transport.process.server import Terminal

_log = logging.getLogger(__name__)

# Forwarded by the parent. Windows lacks the last one, and cannot run several workers.
SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))

FIRST_PAUSE = 0.2
MAX_PAUSE = 10.0
HEALTHY_SECONDS = 60.0  # a worker that lived as long, or exited with code 0, is replaced after the first pause
MAX_SOCKET_PAUSE = 1.0  # of open sockets; in a longer one they are closed, and clients connect to other workers

# The main function of a worker process: its number, the pipe for reports, and the pipe to the limit server.
WorkerTarget = Callable[[int, connection.Connection, connection.Connection], None]


class WorkerReport(Struct, frozen=True, kw_only=True):
    """A report of a worker to its parent: that it is up, or why it cannot start."""

    address: str = ""
    models: list[str] = []
    sentence: str = ""


class WorkerSlot:
    """The position of one worker, whichever process fills it."""

    def __init__(self, number: int, target: WorkerTarget, bind: Callable[[], list[socket.socket]]) -> None:
        self.number = number
        self.sockets: list[socket.socket] = []
        self.due: float | None = None  # when the next process is to be started, while none runs
        self.failure = ""
        self.is_up = False
        self._target = target
        self._bind = bind
        self._process: multiprocessing.process.BaseProcess | None = None
        self._report_pipe: connection.Connection | None = None
        self._limits_pipe: connection.Connection | None = None
        self._started_at = 0.0
        self._next_pause = FIRST_PAUSE

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid or 0

    @property
    def wait_handles(self) -> list["int | connection.Connection"]:
        """Handles that become ready when there is something to process."""
        handles: list[int | connection.Connection] = [] if self._process is None else [self._process.sentinel]
        return [*handles, *(one for one in (self._report_pipe, self._limits_pipe) if one is not None)]

    def start(self) -> None:
        if self._report_pipe is not None:
            self._report_pipe.close()
        self._report_pipe, report_end = multiprocessing.Pipe(duplex=False)
        self.close_limits_pipe()
        self._limits_pipe, limits_end = multiprocessing.Pipe()
        self._started_at, self.failure, self.due, self.is_up = time.monotonic(), "", None, False
        self.sockets = self.sockets or self._bind()
        process = multiprocessing.get_context("fork").Process(
            target=self._target, args=(self.number, report_end, limits_end)
        )
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # signals stay pending until the child can handle them
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        report_end.close()
        limits_end.close()
        self._process = process

    def read_report(self) -> WorkerReport | None:
        """Return the next report of the worker, if there is one."""
        if self._report_pipe is None or not self._report_pipe.poll():
            return None
        try:
            return msgspec.json.decode(self._report_pipe.recv_bytes(), type=WorkerReport)
        except EOFError:
            self._report_pipe.close()
            self._report_pipe = None
            return None

    def serve_limits(self, answer: Callable[[int, bytes], bytes]) -> None:
        """Answer the worker's requests to the limit server.

        A worker sends one request at a time, and its answer fits into the pipe whether or not it is read.
        """
        try:
            while self._limits_pipe is not None and self._limits_pipe.poll():
                self._limits_pipe.send_bytes(answer(self.number, self._limits_pipe.recv_bytes()))
        except (EOFError, OSError, msgspec.MsgspecError):  # whatever a worker sends, its parent survives
            self.close_limits_pipe()

    def poll_exit(self) -> int | None:
        """Return the exit code once, if the process has ended, and schedule its replacement."""
        if self._process is None or self._process.exitcode is None:
            return None
        code = self._process.exitcode
        self._process.close()
        self._process = None
        uptime = time.monotonic() - self._started_at
        pause = FIRST_PAUSE if code == 0 or uptime > HEALTHY_SECONDS else self._next_pause
        self.due, self._next_pause = time.monotonic() + pause, min(pause * 2, MAX_PAUSE)
        if pause > MAX_SOCKET_PAUSE:
            self.close_sockets()  # no client is to wait for a worker that keeps crashing
        return code

    def close_sockets(self) -> None:
        for one in self.sockets:
            one.close()
        self.sockets = []

    def seconds_until_due(self) -> float:
        return 0.0 if self.due is None else max(0.0, self.due - time.monotonic())

    def signal(self, number: int) -> None:
        if self.is_running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        if self.is_running:
            _log.warning("worker %d did not end in time and is killed", self.number)
            self.signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Kill the process if it still runs, so that none outlives the parent."""
        self.close_sockets()
        self.close_limits_pipe()
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.join()

    def close_limits_pipe(self) -> None:
        if self._limits_pipe is not None:
            self._limits_pipe.close()
            self._limits_pipe = None


_EMBEDDED = ("llamacpp", "openvino")

EXIT_NOT_STARTED = 2
KILL_DELAY = 10.0  # seconds beyond the grace period for final writes; then workers are killed

Announce = Callable[[str, list[str]], None]


class WorkerContext(Struct, frozen=True, kw_only=True):
    """The inputs of a worker from its parent: its number, from 1 on, its sockets, the callback for its report, and the
    shared state: memory pages for metrics, and the rate limits.
    """

    number: int
    sockets: list[socket.socket] = []
    announce: Announce
    shared_pages: SharedPages
    shared_limits: SharedLimits


RunWorker = Callable[[WorkerContext], None]


def check_config(config: Config) -> None:
    """Raise StartupError if the settings or the system do not allow several workers."""
    if not hasattr(os, "fork"):
        raise StartupError("This system cannot run several workers: leave --workers at 1.")
    if parse_location(config.storage.store_location)[0] == "memory":
        raise StartupError("Several workers need a store that they share: a file or postgresql://…, see --store.")
    if any(spec.kind in _EMBEDDED for spec in config.inference.specs):
        raise StartupError(
            "Each of several workers would load the model into its own memory: leave --workers at 1, or run one "
            "llama-server for all of them, with --engine llamacpp-server://HOST:PORT."
        )


class WorkerSupervisor:
    """The parent process."""

    def __init__(self, config: Config, run_worker: RunWorker, announce: Announce) -> None:
        self._grace = config.server.shutdown_grace + KILL_DELAY
        self._reserved = reserve_port(config)  # the port stays ours while workers come and go
        self._announce: Announce | None = announce
        self._terminal = Terminal()
        self._shared_pages = SharedPages(config.server.workers)
        self._limit_server = LimitServer()
        # only the parent holds the write end: workers read end-of-file when it dies
        self._parent_pipe, self._parent_pipe_end = os.pipe()
        self._wakeup_reader, self._wakeup_writer = socket.socketpair()
        port: int = self._reserved[0].getsockname()[1]
        target = partial(self._run_worker, run_worker)
        self._slots = [
            WorkerSlot(number, target, partial(bind_sockets, config, port))
            for number in range(1, config.server.workers + 1)
        ]
        self._deadline: float | None = None  # when workers are killed; set when the shutdown starts
        self._reload_requested = False  # the settings have changed since the parent read them

    def run(self) -> None:
        """Run until a signal arrives and all workers have ended. Raises StartupError if the first one cannot start."""
        with self._catch_signals():
            try:
                self._slots[0].start()
                while self._deadline is None or any(slot.is_running for slot in self._slots):
                    self._process_next()
            finally:
                for slot in self._slots:
                    slot.terminate()
                for one in (*self._reserved, self._wakeup_reader, self._wakeup_writer):
                    one.close()
                os.close(self._parent_pipe_end)
                os.close(self._parent_pipe)

    def _process_next(self) -> None:
        """Wait for the next event, and process it."""
        handles = [handle for slot in self._slots for handle in slot.wait_handles]
        connection.wait([self._wakeup_reader, *handles], self._seconds_until_due())
        for number in self._read_signals():
            self._forward_signal(number)
        for slot in self._slots:
            self._poll_slot(slot)
        self._process_deadlines()

    def _poll_slot(self, slot: WorkerSlot) -> None:
        code = slot.poll_exit()
        while (report := slot.read_report()) is not None:
            self._handle_report(slot, report)
        slot.serve_limits(self._limit_server.handle)
        if code is None:
            return
        self._limit_server.forget(slot.number)
        if self._deadline is not None:
            slot.close_sockets()  # clients connect to the remaining workers
        elif self._announce is not None:
            raise StartupError(slot.failure or f"A worker died with code {code} while it started.")
        else:
            reason = slot.failure or f"code {code}"
            _log.warning(
                "worker %d ended (%s) and is replaced in %.1f s", slot.number, reason, slot.seconds_until_due()
            )

    def _handle_report(self, slot: WorkerSlot, report: WorkerReport) -> None:
        if report.sentence:
            slot.failure = report.sentence
            return
        slot.is_up = True
        _log.info("worker %d is up, process %d", slot.number, slot.pid)
        if self._reload_requested:
            slot.signal(signal.SIGHUP)
        if self._announce is not None:
            self._announce(report.address, report.models)
            self._announce = None
            for other in self._slots[1:]:
                other.due = 0.0

    def _process_deadlines(self) -> None:
        now = time.monotonic()
        if self._deadline is None:
            for slot in self._slots:
                if not slot.is_running and slot.due is not None and now >= slot.due:
                    slot.start()
        elif now >= self._deadline:
            self._deadline = now + self._grace
            for slot in self._slots:
                slot.kill()

    def _seconds_until_due(self) -> float | None:
        """Return the seconds until something is due; None if nothing is."""
        if self._deadline is not None:
            due = [self._deadline]
        else:
            due = [slot.due for slot in self._slots if not slot.is_running and slot.due is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _forward_signal(self, number: int) -> None:
        if number == signal.SIGHUP and self._terminal.is_gone():
            number = signal.SIGTERM
        if number == signal.SIGHUP:
            self._reload_requested = True  # for later workers, too: they get the settings that the parent read
        elif self._deadline is None:
            self._deadline = time.monotonic() + self._grace
        for slot in self._slots:
            if slot.is_up or number != signal.SIGHUP:
                slot.signal(number)

    def _read_signals(self) -> Iterator[int]:
        with suppress(BlockingIOError):
            yield from self._wakeup_reader.recv(64)

    @contextmanager
    def _catch_signals(self) -> Iterator[None]:
        self._wakeup_reader.setblocking(False)
        self._wakeup_writer.setblocking(False)
        previous = {one: signal.signal(one, _ignore_signal) for one in SIGNALS}
        fd = signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(fd)
            for one, handler in previous.items():
                signal.signal(one, handler)

    def _run_worker(
        self, run_worker: RunWorker, number: int, report_end: connection.Connection, limits_end: connection.Connection
    ) -> None:
        """The main function of a worker, in its own process."""
        signal.set_wakeup_fd(-1)
        for one in SIGNALS:
            signal.signal(one, signal.SIG_DFL)
        os.setpgid(0, 0)  # else Ctrl-C would reach it twice: from the terminal, and from its parent
        self._close_inherited(number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        threading.Thread(target=_stop_with_parent, args=(self._parent_pipe,), daemon=True, name="parent").start()

        def report_ready(address: str, models: list[str]) -> None:
            report_end.send_bytes(msgspec.json.encode(WorkerReport(address=address, models=models)))

        context = WorkerContext(
            number=number,
            sockets=self._slots[number - 1].sockets,
            announce=report_ready,
            shared_pages=self._shared_pages,
            shared_limits=ParentLimits(limits_end),
        )
        try:
            run_worker(context)
        except StartupError as error:
            report_end.send_bytes(msgspec.json.encode(WorkerReport(sentence=str(error))))
            sys.exit(EXIT_NOT_STARTED)

    def _close_inherited(self, number: int) -> None:
        """Close the inherited descriptors that belong to the parent or to other workers."""
        os.close(self._parent_pipe_end)
        for one in (*self._reserved, self._wakeup_reader, self._wakeup_writer):
            one.close()
        for slot in self._slots:
            slot.close_limits_pipe()
            if slot.number != number:
                slot.close_sockets()


def _ignore_signal(number: int, frame: object) -> None:
    """Do nothing: the number arrives by the wake-up socket."""


def _stop_with_parent(parent_pipe: int) -> None:
    """Stop this worker when its parent dies, which closes the other end of the pipe."""
    os.read(parent_pipe, 1)
    os.kill(os.getpid(), signal.SIGTERM)
