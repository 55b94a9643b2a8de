"""A container in the sandbox process: its folders, its kernel, and the call that runs in it.

Calls wait for each other in order. A kernel that ends, by itself or because it is killed, leaves the files; the next
call gets a new one, and its result says that the variables are gone.
"""

import asyncio
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from antiphon.sandbox.worker import frames, gvisor, processes
from antiphon.sandbox.worker.confinement import Confinement
from antiphon.sandbox.worker.files import SHARED_MODE, Folder, Stamp, empty_folder, list_files, remove_tree
from antiphon.sandbox.worker.forking import StartFailed, ZygoteClient
from antiphon.sandbox.worker.kernel import MAX_FIGURE_BYTES, MAX_FIGURES, SHELL_CELL
from antiphon.sandbox.worker.relay import Relay, receive_listener

Emit = Callable[[frames.Header, bytes], None]

MAX_OUTPUT = 1024 * 1024  # bytes of stdout and stderr together that are kept for a call
_READY_SECONDS = 20.0
_TIMEOUT_GRACE = 0.5  # after the deadline of a call
_INTERRUPT_GRACE = 2.0  # after an interrupt of code that has begun
_MAX_DELAY = 18.0  # on top of it, that processes wait for a CPU
_CPU_SHARE = 0.1  # of this time, that they must have had one
_STOP_POLL = 0.05
_END_SECONDS = 5.0
IDLE_SECONDS = 2.0  # between checks of a container without a call
_IDLE_CPU_SECONDS = 20.0  # that processes may use between two calls
_REPORT_SECONDS = 0.1
_OUTPUT_PAUSE = 0.02
_READ = 65536
_MAX_EXIT_CODE = 255
_MAX_HEADER = 4096  # of a frame from a kernel
_KILL_PAUSE = 0.01  # until processes are killed that those of a command have started meanwhile
_MAX_COMPLAINT = 500
_MAX_DRAIN = 32  # reads after the end of a call: a process in the background may print without end


@dataclass
class Call:
    """A call that is running."""

    nonce: str
    emit: Emit
    done: "asyncio.Future[bool]"  # whether the code raised an exception
    task: "asyncio.Task[Any]"  # that awaits it
    output: int = 0
    dropped: int = 0
    figures: int = 0
    outcome: str = ""  # set by what ends the call early
    begun: asyncio.Event = field(default_factory=asyncio.Event)  # the kernel notices interrupts, or has ended
    is_interrupted: bool = False
    cpu_limit: float = 0.0
    spared: frozenset[int] | None = None  # processes that are older than a command; None: the call is no command
    exit_code: int | None = None
    unsent: dict[str, bytearray] = field(default_factory=dict)  # output by stream

    def send_later(self, stream: str, data: bytes) -> None:
        """Send output with what follows soon: code may print single bytes, a million of them."""
        if not self.unsent:
            asyncio.get_running_loop().call_later(_OUTPUT_PAUSE, self.send)
        self.unsent.setdefault(stream, bytearray()).extend(data)

    def send(self) -> None:
        for stream, data in self.unsent.items():
            self.emit({"stream": stream}, bytes(data))
        self.unsent.clear()


@dataclass
class KernelProcess:
    """A kernel, its guard, and the pipes to it."""

    guard: int
    pidfd: int
    channel: socket.socket
    pipes: dict[int, str]  # stdout, stderr
    writer: asyncio.StreamWriter | None = None  # to the channel
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    is_ready: bool = False  # code may run in it
    complaint: bytes = b""  # what was printed before
    reason: str = ""  # why it was killed
    code: int | None = None
    cpu_base: float = 0.0
    cpu: float = 0.0  # at the last check of limits
    idle_cpu: float = 0.0  # since the last call, from samples
    held: int = 0  # memory, as estimated at the last check of files
    turns: list[str] = field(default_factory=list)  # of its threads on a CPU, at the last check without a call
    lowered: frozenset[int] = frozenset()  # processes whose sessions have a low priority

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)


class DiskUse(NamedTuple):
    entries: int
    size: int
    too_deep: bool = False


class Container:
    def __init__(self, folder: str, spec: Confinement, max_files: int, zygote: ZygoteClient) -> None:
        self._folder = folder
        self.spec = spec
        self._max_files = max_files
        self._allowed = self._limit = DiskUse(max_files, spec.disk)
        self._zygote = zygote
        self._lock = asyncio.Lock()
        self._waiting: set[asyncio.Task[Any]] = set()  # for the lock
        self._call: Call | None = None
        self._lost = False  # a kernel with variables has ended
        self._stamps: dict[str, Stamp] = {}
        self._server_files: set[str] = set()  # that the server has written, or begun to write, since the call began
        self.kernel: KernelProcess | None = None
        self.relay = Relay(self._announce)
        self.is_stopped = False
        _make_folders(folder, spec)
        owner = os.geteuid() if spec.uid is None else spec.uid
        self.data = Folder(spec.data, owner)
        self._temporary = Folder(spec.temporary, owner)
        self.skills = Folder(spec.skills, os.geteuid(), is_shared=True)
        self.skills_room = spec.disk  # bytes that may still be written there

    @property
    def is_running(self) -> bool:
        return self._call is not None

    def has_run(self) -> bool:
        """Return whether a thread has run since this was called last: otherwise nothing can have been used up.

        Those of gVisor always have.
        """
        if (kernel := self.kernel) is None or self.spec.runsc:
            return True
        before, kernel.turns = kernel.turns, processes.read_turns(kernel.guard)
        return kernel.turns != before or "" in before

    async def start(self) -> None:
        """Start a kernel unless there is one. Raises StartFailed."""
        async with self._lock:
            await self._start()

    async def _start(self) -> None:
        if self.is_stopped:
            raise StartFailed("the container was stopped")
        if self.kernel is not None and not self.kernel.ended.is_set():
            return
        if self.kernel is not None:
            self._close_kernel()
        for folder in (self.data, self._temporary):
            folder.restore_mode()
        kernel = await self._open_kernel()
        try:
            reader = await self._await_ready(kernel)
        except StartFailed as error:
            kernel.signal(signal.SIGKILL)
            self._drain(kernel)
            self._close_kernel()
            last = kernel.complaint.decode(errors="replace").strip().rpartition("\n")[2]
            raise StartFailed(f"{error}: {last}" if last else str(error)) from None
        kernel.is_ready = True
        asyncio.get_running_loop().create_task(self._follow(kernel, reader))

    async def _open_kernel(self) -> KernelProcess:
        loop = asyncio.get_running_loop()
        own, other = socket.socketpair()
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
        try:
            guard, pidfd = await self._zygote.start_container(self.spec, [other.fileno(), pipes[0][1], pipes[1][1]])
        except (StartFailed, asyncio.CancelledError):
            own.close()  # and so a kernel ends that is started nevertheless
            for reader_end, _ in pipes:
                os.close(reader_end)
            raise
        finally:
            other.close()
            for _, writer_end in pipes:
                os.close(writer_end)
        own.setblocking(False)
        names = {pipes[0][0]: "stdout", pipes[1][0]: "stderr"}
        self.kernel = KernelProcess(guard, pidfd, own, names)
        for number in names:
            os.set_blocking(number, False)
            loop.add_reader(number, self._read_output, self.kernel, number)
        return self.kernel

    async def _await_ready(self, kernel: KernelProcess) -> asyncio.StreamReader:
        """Wait until a kernel can run code, and return what it writes to the channel. Raises StartFailed."""
        if self.spec.network:
            await self.relay.open(await receive_listener(kernel.channel, _READY_SECONDS))
        reader, kernel.writer = await asyncio.open_connection(sock=kernel.channel, limit=2 * frames.MAX_PAYLOAD)
        try:
            frame = await asyncio.wait_for(frames.read(reader), _READY_SECONDS)
        except TimeoutError:
            raise StartFailed(f"the kernel was not ready within {_READY_SECONDS:g} s") from None
        except frames.InvalidFrame as error:
            raise StartFailed(str(error)) from None
        if frame is None:
            raise StartFailed("the kernel ended while it was confined")
        if frame[0].get("ready") is not True:
            raise StartFailed(str(frame[0].get("failed"))[:500])
        return reader

    async def run(self, code: bytes, seconds: float, cpu_seconds: float, emit: Emit) -> dict[str, Any]:
        """Run code and return how it ended; output and figures are emitted meanwhile."""
        async with self._take_turn() as task:
            emit({"started": True}, b"")
            done = asyncio.get_running_loop().create_future()
            self._call = call = Call(secrets.token_hex(16), emit, done, task, cpu_limit=cpu_seconds)
            try:
                await self._start()
                kernel, restarted, self._lost = self.kernel, self._lost, False
                assert kernel is not None
                assert kernel.writer is not None
                began, self._server_files = time.monotonic(), set()
                tree = self._list_tree(kernel)
                kernel.lowered = processes.lower_priority(tree, frozenset())
                kernel.cpu_base = self._measure_cpu(kernel, tree)
                call.spared = frozenset(tree) if code.startswith(SHELL_CELL.encode()) else None
                kernel.writer.write(frames.pack({"nonce": call.nonce}, code))
                outcome = await self._await_end(kernel, call, seconds)
                self._drain(kernel)
            finally:
                call.send()
                self._call = None
                call.begun.set()
                self.relay.end_all()
            kernel.cpu_base, kernel.idle_cpu = self._measure_cpu(kernel, self._list_tree(kernel)), 0.0
            changed, unlisted = await self._find_changes()
            if kernel.reason in ("disk", "files") or self._allowed != self._limit:
                await asyncio.to_thread(self._allow_excess, kernel.ended.is_set())
            return {
                "outcome": outcome, "reason": kernel.reason, "restarted": restarted, "changed": changed,
                "unlisted": unlisted, "dropped": call.dropped, "seconds": time.monotonic() - began, "code": kernel.code,
                "exit_code": call.exit_code,
            }  # fmt: skip

    @asynccontextmanager
    async def _take_turn(self) -> "AsyncIterator[asyncio.Task[Any]]":
        """Wait for earlier calls. The task of a call can be cancelled until its turn comes."""
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        try:
            await self._lock.acquire()
        finally:
            self._waiting.discard(task)
        try:
            yield task
        finally:
            self._lock.release()

    def _list_tree(self, kernel: KernelProcess) -> list[int]:
        """Return the processes outside of gVisor, whose own many threads take long to list."""
        return [] if self.spec.runsc else processes.list_tree(kernel.guard)

    def _measure_cpu(self, kernel: KernelProcess, tree: list[int]) -> float:
        return kernel.cpu if self.spec.runsc else processes.measure_cpu(tree)

    async def _await_end(self, kernel: KernelProcess, call: Call, seconds: float) -> str:
        ended = asyncio.ensure_future(kernel.ended.wait())
        either: set[asyncio.Future[Any]] = {call.done, ended}
        try:
            await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not call.done.done() and not ended.done():
                call.outcome = call.outcome or "timeout"
                await self._end_call(call, _TIMEOUT_GRACE)
        except asyncio.CancelledError:
            await self.kill("cancelled")
            raise
        finally:
            ended.cancel()
        if call.done.done():
            return call.outcome or ("raised" if call.done.result() else "completed")
        if not kernel.ended.is_set():
            await self.kill(kernel.reason or call.outcome)
        with suppress(TimeoutError):
            await asyncio.wait_for(kernel.ended.wait(), _END_SECONDS)
        kernel.reason = kernel.reason or "exited"
        return "killed"

    async def _end_call(self, call: Call, grace: float) -> None:
        """Stop the code, and return when it has ended, or has had time for it, and CPU time if it was ready to run."""
        if self.kernel is None:  # it is being started
            with suppress(TimeoutError):
                await asyncio.wait_for(call.begun.wait(), _READY_SECONDS)
        if (kernel := self.kernel) is None:
            return
        began, cpu = time.monotonic(), processes.measure_cpu(processes.list_tree(kernel.guard))
        while self._call is call and not kernel.ended.is_set():
            is_left = self._stop_code(kernel, call)
            pids, elapsed = processes.list_tree(kernel.guard), time.monotonic() - began
            is_starved = processes.measure_cpu(pids) - cpu < _CPU_SHARE * grace and processes.has_ready_thread(pids)
            if (call.done.done() and not is_left) or elapsed > grace + (_MAX_DELAY if is_starved else 0.0):
                return
            await (asyncio.sleep(_KILL_PAUSE) if is_left else asyncio.wait({call.done}, timeout=_STOP_POLL))

    def _stop_code(self, kernel: KernelProcess, call: Call) -> bool:
        """Interrupt code, once it has begun: it would not notice it before. Of a command, kill all processes that it
        has started, and return whether there were any: the kernel lives.
        """
        if call.begun.is_set() and call.spared is not None and not self.spec.runsc:
            return processes.kill_descendants(kernel.guard, call.spared)
        if call.begun.is_set() and not call.is_interrupted:
            call.is_interrupted = True
            kernel.signal(signal.SIGINT)
        return False

    async def interrupt(self, task: "asyncio.Task[Any] | None" = None) -> None:
        """Interrupt the running call, or that of a task; its kernel is killed if it does not stop."""
        call = self._call
        if task is not None and task in self._waiting:
            task.cancel()
        if call is None or call.done.done() or task not in (None, call.task):
            return
        call.outcome = "interrupted"
        await self._end_call(call, _INTERRUPT_GRACE)
        if self._call is call and not call.done.done():
            await self.kill("interrupted")

    async def kill(self, reason: str) -> None:
        """Kill all processes of the container, and wait until they have ended."""
        kernel = self.kernel
        if kernel is None or kernel.ended.is_set():
            return
        kernel.reason = kernel.reason or reason
        # A guard outside of the container kills its group when it is terminated.
        kernel.signal(signal.SIGKILL if self.spec.namespaces else signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(kernel.ended.wait(), _END_SECONDS)

    async def stop(self) -> None:
        """End the container and delete its files."""
        self.is_stopped = True
        await self.kill("stopped")
        async with self._lock:
            if self.kernel is not None:
                self._close_kernel()
            self.data.close()
            self._temporary.close()
            self.skills.close()
            await asyncio.to_thread(remove_tree, self._folder)

    def end(self, code: int) -> None:
        """Note that the guard has ended."""
        if self.kernel is not None and not self.kernel.ended.is_set():
            self.kernel.code = code
            self.kernel.ended.set()
            self._lost = True

    async def check_processes(self) -> None:
        """Kill the container if its processes exceed a limit. RLIMITs hold for single ones only."""
        kernel, call, spec = self.kernel, self._call, self.spec
        if kernel is None or not kernel.is_ready or kernel.ended.is_set():
            return
        pids = processes.list_tree(kernel.guard)
        kernel.lowered = processes.lower_priority(pids, kernel.lowered)
        kernel.cpu = processes.measure_cpu(pids)
        if self._measure_memory(kernel, pids) > spec.memory:
            await self._kill(kernel, "memory")
        elif spec.runsc and len(pids) > gvisor.count_host_processes(spec):
            await self._kill(kernel, "processes")
        elif call is None:
            kernel.idle_cpu += processes.count_running(pids) * IDLE_SECONDS
            if max(kernel.cpu - kernel.cpu_base, kernel.idle_cpu) > _IDLE_CPU_SECONDS:
                await self._kill(kernel, "cpu")
        elif kernel.cpu - kernel.cpu_base > call.cpu_limit:
            await self._kill(kernel, "cpu")

    def _measure_memory(self, kernel: KernelProcess, pids: list[int]) -> int:
        if self.spec.runsc:
            return processes.measure_gvisor(pids)
        sockets = processes.measure_sockets(kernel.guard) if self.spec.namespaces else 0
        return processes.measure_memory(pids, self.spec.memory) + max(kernel.held, sockets)

    async def check_files(self) -> None:
        """Kill the container if its files exceed a limit, or its processes hold what is counted by their files."""
        kernel = self.kernel
        if kernel is None or not kernel.is_ready or kernel.ended.is_set():
            return
        if reason := await asyncio.to_thread(self._judge_files, kernel):
            await self._kill(kernel, reason)

    def _judge_files(self, kernel: KernelProcess) -> str:
        found = self._measure_disk(self._allowed.entries)
        if found.too_deep or found.entries > self._allowed.entries:
            return "files"
        spec = self.spec
        paths = [spec.data_path, spec.temporary_path]
        seen = paths if spec.namespaces else map(os.path.realpath, paths)  # those of the kernel have no links
        pids = processes.list_tree(kernel.guard)
        held = processes.measure_held(pids, tuple(seen), spec.disk)
        kernel.held = held.memory
        return "disk" if found.size + held.disk > self._allowed.size else ""

    async def _kill(self, kernel: KernelProcess, reason: str) -> None:
        if kernel is self.kernel:
            await self.kill(reason)

    def _allow_excess(self, has_ended: bool) -> None:
        """Allow the next call the files that this one left, although they exceed the limit: it may delete them.

        All are deleted beyond twice the limit, as otherwise each call could add some. No process may run then.
        """
        found = self._measure_disk(sys.maxsize)
        if has_ended and (found.entries > 2 * self._limit.entries or found.size > 2 * self._limit.size):
            for folder in (self.data, self._temporary):
                folder.restore_mode()
                empty_folder(folder.number)
            found = self._limit
        self._allowed = DiskUse(max(found.entries, self._limit.entries), max(found.size, self._limit.size))

    def _measure_disk(self, max_entries: int) -> DiskUse:
        """Measure both folders, each up to a number of entries."""
        surveys = [folder.survey(max_entries) for folder in (self.data, self._temporary)]
        return DiskUse(
            sum(survey.entries for survey in surveys),
            sum(survey.size for survey in surveys),
            any(survey.too_deep for survey in surveys),
        )

    def free_bytes(self) -> int:
        return self.spec.disk - self.data.survey(self._max_files).size

    async def write(self, path: str, offset: int, data: bytes) -> None:
        """Write to a file for the server, maybe while code is running, whose files it is not counted among."""
        self._server_files.add(path)
        await asyncio.to_thread(self.data.write, path, offset, data)
        files = (await asyncio.to_thread(self.data.survey, self._max_files)).files
        self._server_files.add(path)  # again, if a call has begun meanwhile
        if path in files:
            self._stamps[path] = files[path]

    async def _find_changes(self) -> tuple[list[dict[str, Any]], int]:
        """Return the files that differ from those after the last call, and how many more there are."""
        files = (await asyncio.to_thread(self.data.survey, self._max_files)).files
        stamps, own = self._stamps, self._server_files
        changed = [path for path, stamp in files.items() if stamps.get(path) != stamp and path not in own]
        self._stamps = {**files, **{path: stamps[path] for path in own & stamps.keys()}}
        return list_files(files, changed)

    async def _follow(self, kernel: KernelProcess, reader: asyncio.StreamReader) -> None:
        """Take the frames of a kernel. One that breaks the protocol is killed."""
        try:
            while (frame := await frames.read(reader, _MAX_HEADER, MAX_FIGURE_BYTES)) is not None:
                self._take(kernel, *frame)
        except frames.InvalidFrame:
            pass
        if kernel is self.kernel and not kernel.ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(kernel.ended.wait(), _REPORT_SECONDS)  # its guard is about to report its end
            await self.kill("exited" if reader.at_eof() else "protocol")

    def _take(self, kernel: KernelProcess, header: frames.Header, payload: bytes) -> None:
        call = self._call
        if call is None or kernel is not self.kernel or header.get("nonce") != call.nonce or call.done.done():
            raise frames.InvalidFrame("a frame outside of a call")
        if header.get("begun") is True and not call.begun.is_set():
            call.begun.set()
        elif "figure" in header and call.figures < MAX_FIGURES:
            call.figures += 1
            call.emit({"figure": call.figures}, payload)
        elif header.get("done") is True:
            code = header.get("exit_code")
            call.exit_code = code if isinstance(code, int) and 0 <= code <= _MAX_EXIT_CODE else None
            call.done.set_result(header.get("raised") is True)
        else:
            raise frames.InvalidFrame("a frame that no kernel sends")

    def _announce(self, number: int) -> bool:
        """Report a connection to the proxy to the server of the running call; False if there is no call."""
        if self._call is not None:
            self._call.emit({"connection": number}, b"")
        return self._call is not None

    def _read_output(self, kernel: KernelProcess, number: int) -> bool:
        """Take what a pipe holds; False if that is nothing."""
        try:
            data = os.read(number, _READ)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(number)
            return False
        if not kernel.is_ready:
            kernel.complaint = (kernel.complaint + data)[-_MAX_COMPLAINT:]
        elif (call := self._call) is not None:
            kept = data[: max(0, MAX_OUTPUT - call.output)]
            call.output += len(kept)
            call.dropped += len(data) - len(kept)
            if kept:
                call.send_later(kernel.pipes[number], kept)
        return True

    def _drain(self, kernel: KernelProcess) -> None:
        """Take what the pipes still hold."""
        for number in kernel.pipes:
            reads = 0
            while reads < _MAX_DRAIN and self._read_output(kernel, number):
                reads += 1

    def _close_kernel(self) -> None:
        kernel, self.kernel = self.kernel, None
        assert kernel is not None
        self.relay.close()
        for number in kernel.pipes:
            asyncio.get_running_loop().remove_reader(number)
            os.close(number)
        (kernel.writer or kernel.channel).close()
        os.close(kernel.pidfd)


def _make_folders(folder: str, spec: Confinement) -> None:
    for path in (folder, spec.root, spec.data, spec.temporary, spec.skills):
        os.mkdir(path, 0o700)
    os.chmod(spec.skills, SHARED_MODE)
    if spec.uid is not None:
        for path in (folder, spec.data, spec.temporary, *([spec.root] if spec.runsc else [])):
            os.chown(path, spec.uid, spec.uid)
