"""Keeps one model's child process running, and starts it again when it died.

    cold ──first use──▶ starting ──▶ up ──it died──▶ resting ──▶ starting ──▶ …
      ▲                    │ failed: a sentence for all who wait; if it never ran, cold again
      └───────stop─────────┘

Work in flight fails at once when a child dies, because its connections close. Each rest is longer than the last,
until a child has lived for a while.
"""

import asyncio
import logging

from msgspec import Struct

from antiphon.engines.client import Client, Deadlines, UnixAddress
from antiphon.engines.llamacpp.child import Launch
from antiphon.engines.llamacpp.process import Child
from antiphon.errors import StartupError, Unavailable

log = logging.getLogger(__name__)

FIRST_REST = 0.2
LONGEST_REST = 10.0
HEALTHY_SECONDS = 60.0


class Patience(Struct, frozen=True, kw_only=True):
    """Seconds that a model may take to load, and to say something."""

    load: float = 300.0
    idle: float = 120.0


class Running(Struct, frozen=True, eq=False):
    child: Child
    client: Client
    lost: asyncio.Event  # it is not the running one any more

    async def gone(self, seconds: float) -> bool:
        """Whether it is, or turns out to be within that time."""
        try:
            async with asyncio.timeout(seconds):
                return await self.lost.wait()
        except TimeoutError:
            return False


class Rests:
    """Seconds to wait before the next start, by how long the last child lived."""

    def __init__(self) -> None:
        self._next = FIRST_REST

    def after(self, lived: float) -> float:
        rest = FIRST_REST if lived > HEALTHY_SECONDS else self._next
        self._next = min(rest * 2, LONGEST_REST)
        return rest


class Supervisor:
    def __init__(self, model: str, launch: Launch, patience: Patience) -> None:
        self._model = model
        self._launch = launch
        self._patience = patience
        self._task: asyncio.Task[None] | None = None
        self._running: asyncio.Future[Running] | None = None
        self.starts = 0  # since it was cold

    @property
    def wanted(self) -> bool:
        """Running, or about to."""
        return self._task is not None and not self._task.done()

    @property
    def child(self) -> Child | None:
        """While it lives."""
        running = self._running
        if running is None or not running.done() or running.exception() is not None:
            return None
        return running.result().child if running.result().child.alive else None

    def start(self) -> asyncio.Future[Running]:
        """Unless it was started; what comes of it is told to who awaits it."""
        running = self._running
        if running is None or not self.wanted:
            running = self._running = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._keep_up(), name=f"supervisor of {self._model}")
        return running

    async def ready(self) -> Running:
        """StartupError if it cannot be."""
        return await asyncio.shield(self.start())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._tell(Unavailable(f"The model {self._model} is being unloaded.", retry_after=1.0))
        self.starts = 0

    async def _keep_up(self) -> None:
        clock = asyncio.get_running_loop()
        rests = Rests()
        while True:
            begun = clock.time()
            try:
                child = await Child.start(self._launch, self._patience.load)
            except StartupError as error:
                self._tell(error)
                if not self.starts:
                    return
                log.error("%s", error)
                self._running = clock.create_future()
            else:
                await self._attend(child)
            await asyncio.sleep(rests.after(clock.time() - begun))

    async def _attend(self, child: Child) -> None:
        """Until it ends."""
        deadlines = Deadlines(first=self._patience.idle, idle=self._patience.idle)
        client = Client(UnixAddress(child.socket), f"The engine of {self._model}", deadlines)
        running = Running(child, client, asyncio.Event())
        self.starts += 1
        if self._running is not None:
            self._running.set_result(running)
        try:
            code = await child.exited()
            log.warning("the engine of %s died with code %d and is started again", self._model, code)
        finally:
            self._running = asyncio.get_running_loop().create_future()
            running.lost.set()
            client.close()
            await child.stop()

    def _tell(self, error: StartupError | Unavailable) -> None:
        if self._running is not None and not self._running.done():
            self._running.set_exception(error)
            self._running.exception()  # nobody may be waiting: then it is no loss
