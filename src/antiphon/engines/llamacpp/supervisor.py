"""Keeps the child process of one model running and restarts it after an exit.

    cold ──first use──▶ starting ──▶ up ──exit──▶ waiting ──▶ starting ──▶ …
      ▲                    │ failed: an error for all waiters; if it never ran, cold again
      └───────stop─────────┘

Requests in flight fail at once when a child exits, because its connections close. Each restart delay is longer than the
previous one, until a child has run for a while.
"""

import asyncio
import logging

from msgspec import Struct

from antiphon.engines.client import EngineClient, EngineTimeouts
from antiphon.engines.connection import UnixAddress
from antiphon.engines.llamacpp.child import LaunchSpec
from antiphon.engines.llamacpp.process import ChildProcess
from antiphon.errors import StartupError, Unavailable

log = logging.getLogger(__name__)

MIN_RESTART_DELAY = 0.2
MAX_RESTART_DELAY = 10.0
HEALTHY_SECONDS = 60.0


class ModelTimeouts(Struct, frozen=True, kw_only=True):
    """Seconds that a model may take to load, and to send the next data."""

    load: float = 300.0
    idle: float = 120.0


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


class RestartBackoff:
    """Delays in seconds before the next start, depending on the uptime of the last child."""

    def __init__(self) -> None:
        self._next = MIN_RESTART_DELAY

    def next_delay(self, uptime: float) -> float:
        delay = MIN_RESTART_DELAY if uptime > HEALTHY_SECONDS else self._next
        self._next = min(delay * 2, MAX_RESTART_DELAY)
        return delay


class ChildSupervisor:
    """Starts, watches and restarts the child process of one model."""

    def __init__(self, model: str, launch: LaunchSpec, timeouts: ModelTimeouts) -> None:
        self._model = model
        self._launch = launch
        self._timeouts = timeouts
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
        backoff = RestartBackoff()
        while True:
            started = loop.time()
            try:
                child = await ChildProcess.start(self._launch, self._timeouts.load)
            except StartupError as error:
                self._fail_waiters(error)
                if not self.starts:
                    return
                log.error("%s", error)
                self._running_future = loop.create_future()
            else:
                await self._watch_child(child)
            await asyncio.sleep(backoff.next_delay(loop.time() - started))

    async def _watch_child(self, child: ChildProcess) -> None:
        """Publish the child and wait until it exits."""
        timeouts = EngineTimeouts(first_byte=self._timeouts.idle, idle=self._timeouts.idle)
        client = EngineClient(UnixAddress(child.socket), f"The engine of {self._model}", timeouts)
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
