"""The child process of one model, and its supervision: it is started on first use and restarted after an exit.

    cold ──first use──▶ starting ──▶ up ──exit──▶ waiting ──▶ starting ──▶ …
      ▲                    │ failed: an error for all waiters; if it never ran, cold again
      └───────stop─────────┘

The socket of a child is in a folder of its own that other users cannot enter. The child exits with the parent, because
its stdin closes. Requests in flight fail at once when a child exits, because its connections close. Each restart delay
is longer than the previous one, until a child has run for a while.
"""

import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections import deque
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.engines.client import EngineClient, EngineTimeouts
from antiphon.engines.connection import UnixAddress
from antiphon.engines.embedded.child import LaunchSpec
from antiphon.errors import StartupError, Unavailable

log = logging.getLogger(__name__)

GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL
MAX_LOG_LINES = 40
MAX_LOG_LINE_BYTES = 64 * 1024
MIN_RESTART_DELAY = 0.2
MAX_RESTART_DELAY = 10.0
HEALTHY_SECONDS = 60.0


class ChildProcess:
    """A running child process and its log."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.socket = str(folder / "engine.sock")
        self._folder = folder
        self._process = process
        self._log_lines: deque[str] = deque(maxlen=MAX_LOG_LINES)
        self.line_count = 0  # lines logged so far
        self._line_added = asyncio.Event()
        self._log_reader = asyncio.create_task(self._read_log(), name=f"log of child {process.pid}")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    @classmethod
    async def start(cls, launch: LaunchSpec, seconds: float) -> "ChildProcess":
        """Start a child and wait until its model is loaded; fills in `launch.socket` and `launch.parent`."""
        folder = Path(tempfile.mkdtemp(prefix="antiphon-"))  # 0700
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", launch.program,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C must reach only the parent, which first lets answers finish
                limit=MAX_LOG_LINE_BYTES,
            )  # fmt: skip
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise StartupError(f"No process can be started for {launch.model}: {error.strerror}.") from None
        child = cls(process, folder)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(child.stop)
            await child._load(replace(launch, socket=child.socket, parent=os.getpid()), seconds)
            stack.pop_all()
        return child

    async def wait_exited(self) -> int:
        return await self._process.wait()

    async def stop(self) -> None:
        """Stop the process; kill it if it does not exit within the grace period."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self.is_alive:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(GRACE_SECONDS):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        finally:
            self._log_reader.cancel()
            await asyncio.wait([self._log_reader])
            shutil.rmtree(self._folder, ignore_errors=True)

    async def find_in_log(self, text: str, position: int, seconds: float) -> str:
        """Return the first line after `position` with the text; "" after `seconds`. The log lags behind responses."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    recent = [*reversed(self._log_lines)][: self.line_count - position]
                    if found := [line for line in recent if text in line]:
                        return found[-1]
                    self._line_added.clear()
                    await self._line_added.wait()
        return ""

    async def _load(self, launch: LaunchSpec, seconds: float) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            async with asyncio.timeout(seconds):
                stdin.write(msgspec.json.encode(launch) + b"\n")
                line = await stdout.readline()
        except TimeoutError:
            raise StartupError(f"{launch.model} did not load within {seconds:.0f} seconds.") from None
        error = msgspec.json.decode(line, type=str) if line.endswith(b"\n") else "the process died"
        if error:
            raise StartupError(f"{launch.model} cannot be loaded: {await self._load_error(error)}.")

    async def _load_error(self, default: str) -> str:
        """Return the first error in the log of llama.cpp, which is more precise than its exception, or the default."""
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await self._log_reader
        errors = [line.split(" E ", 1)[1] for line in self._log_lines if " E " in line]
        return (errors[0] if errors else default).strip().rstrip(".")

    async def _read_log(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None
        while True:
            try:
                line = await stderr.readline()
            except ValueError:  # drop lines above the limit
                continue
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip()
            self._log_lines.append(text)
            self.line_count += 1
            self._line_added.set()
            log.debug("child %d: %s", self._process.pid, text)


class RunningChild(Struct, frozen=True, eq=False):
    """A ready child process and the client for it."""

    child: ChildProcess
    client: EngineClient
    lost: asyncio.Event  # set when the child is no longer the running one

    async def wait_lost(self, seconds: float) -> bool:
        """Return whether the child is lost, or becomes lost within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                return await self.lost.wait()
        except TimeoutError:
            return False


def restart_delay(previous: float, uptime: float) -> float:
    """Return the seconds before the next start, from the previous delay and the uptime of the last child."""
    return MIN_RESTART_DELAY if uptime > HEALTHY_SECONDS or not previous else min(previous * 2, MAX_RESTART_DELAY)


class ChildSupervisor:
    """Starts, watches and restarts the child of one model. The timeouts: seconds to load, and to send the next data."""

    def __init__(self, model: str, launch: LaunchSpec, load_timeout: float, idle_timeout: float = 120.0) -> None:
        self._model = model
        self._launch = launch
        self._load_timeout = load_timeout
        self._client_timeouts = EngineTimeouts(first_byte=idle_timeout, idle=idle_timeout)
        self._task: asyncio.Task[None] | None = None
        self._running_future: asyncio.Future[RunningChild] | None = None
        self.starts = 0  # successful starts since the last `stop`

    @property
    def is_started(self) -> bool:
        """True while the child is running, starting, or about to be restarted."""
        return self._task is not None and not self._task.done()

    @property
    def child(self) -> ChildProcess | None:
        """The child process while it is alive."""
        running = self._running_future
        if running is None or not running.done() or running.exception() is not None:
            return None
        return running.result().child if running.result().child.is_alive else None

    def start(self) -> asyncio.Future[RunningChild]:
        """Start the child unless it is started; the returned future gets the running child or the error."""
        running = self._running_future
        if running is None or not self.is_started:
            running = self._running_future = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run(), name=f"supervisor of {self._model}")
        return running

    async def wait_ready(self) -> RunningChild:
        """Start the child if needed and wait until it is ready; raises `StartupError` if it cannot start."""
        return await asyncio.shield(self.start())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._fail_waiters(Unavailable(f"The model {self._model} is being unloaded.", retry_after=1.0))
        self.starts = 0

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        delay = 0.0
        while True:
            started = loop.time()
            try:
                child = await ChildProcess.start(self._launch, self._load_timeout)
            except StartupError as error:
                self._fail_waiters(error)
                if not self.starts:
                    return
                log.error("%s", error)
                self._running_future = loop.create_future()
            else:
                await self._watch_child(child)
            delay = restart_delay(delay, loop.time() - started)
            await asyncio.sleep(delay)

    async def _watch_child(self, child: ChildProcess) -> None:
        """Publish the child and wait until it exits."""
        client = EngineClient(UnixAddress(child.socket), f"The engine of {self._model}", self._client_timeouts)
        running = RunningChild(child, client, asyncio.Event())
        self.starts += 1
        if self._running_future is not None:
            self._running_future.set_result(running)
        try:
            code = await child.wait_exited()
            log.warning("the engine of %s exited with code %d and is being restarted", self._model, code)
        finally:
            self._running_future = asyncio.get_running_loop().create_future()
            running.lost.set()
            client.close()
            await child.stop()

    def _fail_waiters(self, error: StartupError | Unavailable) -> None:
        if self._running_future is not None and not self._running_future.done():
            self._running_future.set_exception(error)
            self._running_future.exception()  # mark as retrieved: there may be no waiter
