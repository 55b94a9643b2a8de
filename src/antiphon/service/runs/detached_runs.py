"""All runs of this process: limited, found by id, informed of changes in other processes, and closed at shutdown."""

import asyncio
import logging
from collections.abc import Callable

from msgspec import Struct

from antiphon.agent.run import Run
from antiphon.errors import AntiphonError, EngineFailed, Unavailable
from antiphon.service.access.rate_limits import RateLimits
from antiphon.service.persistence.background_tasks import BackgroundTasks
from antiphon.service.persistence.live_writer import LiveWriter, PriorLog
from antiphon.service.persistence.notifications import QUEUE, Notifications
from antiphon.service.persistence.owned_row import OwnedRow
from antiphon.service.planning.planner import PlannedResponse
from antiphon.service.runs.active_runs import ActiveRun, ActiveRuns, RunSlot
from antiphon.service.runs.detached_run import DetachedRun, DetachedRunSpec
from antiphon.stores.base import Store
from antiphon.stores.live.base import LiveLog

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 5.0  # for ends that are still being stored at shutdown


class DetachedRunSettings(Struct, frozen=True, kw_only=True):
    """Operator settings for runs."""

    max_runs: int = 2000  # responses that run concurrently
    keep_streams: float = 0.0  # seconds that a foreground run continues without readers
    lease: float = 15.0


class BackgroundState(Struct, frozen=True, kw_only=True):
    """State of a background run beside its plan."""

    previous: PriorLog = PriorLog()  # log written by a former owner
    seconds: float | None = None  # until its deadline; None: no deadline


class DetachedRuns:
    """Starts, finds and ends detached runs. `on_end` is called for every run that ended."""

    def __init__(
        self,
        store: Store,
        live: LiveLog,
        settings: DetachedRunSettings,
        on_end: Callable[[Run], None],
        rate_limits: RateLimits | None = None,
    ) -> None:
        self._store = store
        self._live = live
        self._settings = settings
        self._on_end = on_end
        self._rate_limits = rate_limits or RateLimits()
        self._active_runs = ActiveRuns(settings.max_runs)
        self.acquire_slot: Callable[[str], RunSlot] = self._active_runs.acquire  # call before storing; raises Busy
        self._tasks = BackgroundTasks()
        self._check_tasks = BackgroundTasks()
        self._pending_checks: dict[str, bool] = {}  # ownership checks by response id; True: another one is due
        self.notifications = Notifications()
        self.closed = False

    @property
    def keeps_streams(self) -> bool:
        """Whether a stream survives the disconnect of its client."""
        return self._settings.keep_streams > 0

    def count_runs(self) -> int:
        """Return the number of all running responses, including direct runs."""
        return len(self._active_runs.slots)

    def is_busy(self) -> bool:
        """Whether any run without a driving client is active."""
        return len(self._tasks) > 0

    def find(self, tenant: str, response_id: str) -> ActiveRun | None:
        return self._active_runs.find(tenant, response_id)

    def start_foreground(
        self, slot: RunSlot, tenant: str, planned: PlannedResponse, owned_row: OwnedRow | None
    ) -> DetachedRun:
        """Start a foreground run. Follow it at once (`FollowService.follow`): it ends with its last reader.

        Takes ownership of the slot, the planned response and its row.
        """
        lease, keep_streams = self._settings.lease, self._settings.keep_streams
        spec = DetachedRunSpec(
            tenant=tenant, planned=planned, owned_row=owned_row, lease=lease, keep_streams=keep_streams
        )
        return self._start(slot, spec)[0]

    def start_background(
        self, tenant: str, planned: PlannedResponse, owned_row: OwnedRow, state: BackgroundState
    ) -> asyncio.Task[None]:
        """Start a background run and return its task. Takes ownership of the planned response and its row."""
        lease = self._settings.lease
        live_writer = LiveWriter(self._live, owned_row, lease, state.previous)
        spec = DetachedRunSpec(
            tenant=tenant, planned=planned, owned_row=owned_row, live_writer=live_writer, lease=lease
        )
        detached_run, task = self._start(self._active_runs.acquire(tenant, is_exempt=True), spec)
        if state.seconds is not None:
            timeout_error = EngineFailed("The response took longer than this server allows and was ended.")
            timer = asyncio.get_running_loop().call_later(
                max(0.0, state.seconds), detached_run.interrupt, timeout_error
            )
            task.add_done_callback(lambda _: timer.cancel())
        return task

    def on_notification(self, response_id: str) -> None:
        """Callback for `LiveLog.open`: wake waiters and check the ownership of the response."""
        self.notifications.notify(response_id)
        active = self._active_runs.by_id.get(response_id)
        if not isinstance(active, DetachedRun) or not active.should_verify():
            return
        is_checking = response_id in self._pending_checks
        self._pending_checks[response_id] = True
        if not is_checking:
            self._check_tasks.start(self._verify_ownership(active))

    async def notify_servers(self, topic: str) -> None:
        """Notify all servers that a response changed in the store, or that the queue has new entries.

        A failure is only logged: servers also check the store periodically.
        """
        try:
            await self._live.tell(topic)
        except AntiphonError as error:
            log.warning("the notification for %s could not be sent: %s", topic, error)

    def interrupt(self, error: AntiphonError) -> None:
        """End runs after the shutdown grace period: client-driven runs end with this error, detached ones are handed
        over.
        """
        self.closed = True
        for slot in [*self._active_runs.slots]:
            if slot.run is not None:
                slot.run.interrupt(error)
            elif isinstance(slot.active, DetachedRun):
                slot.active.hand_over(error)
        self.notifications.close()

    async def wait_drained(self) -> None:
        """Wait until no detached run is active."""
        await self._tasks.wait_all()

    async def close(self) -> None:
        """Interrupt active runs and wait for all tasks."""
        self.interrupt(Unavailable("The server is shutting down.", retry_after=2.0))
        if len(self._tasks):
            await self._tasks.close(_CLOSE_SECONDS)
            await self.notify_servers(QUEUE)  # other servers may have a slot for responses that were handed over
        await self._check_tasks.close()

    def _start(self, slot: RunSlot, spec: DetachedRunSpec) -> tuple[DetachedRun, asyncio.Task[None]]:
        detached_run = DetachedRun(spec, self._on_end)
        slot.register(detached_run)
        with self._rate_limits.hold_charge(
            spec.tenant, "" if spec.owned_row is None else spec.owned_row.charged_key
        ) as usage_charge:
            task = self._tasks.start(detached_run.run())
        task.add_done_callback(lambda _: slot.release())
        task.add_done_callback(lambda _: usage_charge.leave())
        if self.closed:
            detached_run.hand_over(Unavailable("The server is shutting down.", retry_after=2.0))
        return detached_run, task

    async def _verify_ownership(self, detached_run: DetachedRun) -> None:
        tenant, response_id = detached_run.tenant, detached_run.opening.id
        try:
            while self._pending_checks[response_id]:
                if (delay := detached_run.get_echo_delay()) > 0:
                    await asyncio.sleep(delay)
                    continue
                self._pending_checks[response_id] = False
                if detached_run.should_verify():
                    detached_run.verify_ownership(await self._store.get(tenant, response_id))
        except Unavailable as error:
            log.warning("the ownership of %s could not be checked: %s", response_id, error)
        finally:
            del self._pending_checks[response_id]
