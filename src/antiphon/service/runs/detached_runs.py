"""All runs of this process: limited, found by id, informed of changes in other processes, and closed at shutdown."""

import asyncio
import logging
from collections.abc import Callable

from antiphon.agent.completion_run import CompletionRun
from antiphon.agent.run import Run
from antiphon.config.areas import StorageSettings
from antiphon.errors import AntiphonError, EngineFailed, Unavailable
from antiphon.offload import BackgroundTasks
from antiphon.service.access.rate_limits import RateLimits
from antiphon.service.persistence.live_updates import QUEUE, LiveWriter, Notifications, PriorLog
from antiphon.service.persistence.response_writer import OwnedRow
from antiphon.service.persistence.stored_images import StoredImages
from antiphon.service.planning.planner import PlannedResponse
from antiphon.service.runs.active_runs import ActiveRun, ActiveRuns, RunSlot
from antiphon.service.runs.detached_run import DetachedRun
from antiphon.stores.live.base import LiveLog
from antiphon.stores.sql.store import Store

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 5.0  # for ends that are still being stored at shutdown


class DetachedRuns(ActiveRuns):
    """Starts, finds and ends detached runs. `on_end` is called for every run that ended."""

    def __init__(
        self,
        store: Store,
        live: LiveLog,
        settings: StorageSettings,
        on_end: Callable[[Run | CompletionRun], None],
        rate_limits: RateLimits | None = None,
        images: StoredImages | None = None,
    ) -> None:
        super().__init__(settings.max_active_sessions, settings.keep_streams)
        self.store = store
        self.live = live
        self.images = images  # None: images are stored in the rows
        self._settings = settings
        self.keeps_streams = settings.keep_streams > 0  # a stream survives the disconnect of its client
        self.on_end = on_end
        self._rate_limits = rate_limits or RateLimits()
        self.tasks = BackgroundTasks()  # drive the runs that do not need a client
        self._check_tasks = BackgroundTasks()
        self._pending_checks: dict[str, bool] = {}  # ownership checks by response id; True: another one is due
        self.notifications = Notifications()
        self.closed = False

    def is_busy(self) -> bool:
        """Return whether a background run is active. Other runs end with their clients' requests, or without them."""
        return any(active.opening.background for active in self.by_id.values())

    def start_foreground(
        self, slot: RunSlot, tenant: str, planned: PlannedResponse, owned_row: OwnedRow
    ) -> DetachedRun:
        """Start a foreground run. Follow it at once (`Follower`): it ends `--keep-streams` after its last reader.

        Takes ownership of the slot, the planned response and its row.
        """
        detached_run, task = self._start(slot, tenant, planned, owned_row)
        detached_run.unread_runs = self.unread
        task.add_done_callback(lambda _: self.unread.remove(detached_run))
        return detached_run

    def start_background(
        self,
        tenant: str,
        planned: PlannedResponse,
        owned_row: OwnedRow,
        prior: PriorLog | None = None,
        seconds: float | None = None,
    ) -> asyncio.Task[None]:
        """Start a background run and return its task. Takes ownership of the planned response and its row.

        `prior`: log written by a former owner. `seconds`: time until its deadline.
        """
        slot = self.acquire(tenant, is_exempt=True)
        live_writer = LiveWriter(self.live, owned_row, self._settings.lease_seconds, prior or PriorLog())
        with self._rate_limits.hold_charge(tenant, owned_row.charged_key) as usage_charge:
            detached_run, task = self._start(slot, tenant, planned, owned_row, live_writer)
        task.add_done_callback(lambda _: usage_charge.leave())
        if seconds is not None:
            timeout_error = EngineFailed("The response took longer than this server allows and was ended.")
            timer = asyncio.get_running_loop().call_later(max(0.0, seconds), detached_run.interrupt, timeout_error)
            task.add_done_callback(lambda _: timer.cancel())
        return task

    def on_notification(self, response_id: str) -> None:
        """Callback for `LiveLog.open`: wake waiters and check the ownership of the response."""
        self.notifications.notify(response_id)
        active = self.by_id.get(response_id)
        if active is None or not active.should_verify():
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
            await self.live.tell(topic)
        except AntiphonError as error:
            log.warning("the notification for %s could not be sent: %s", topic, error)

    def interrupt(self) -> None:
        """End all runs after the shutdown grace period: those of clients with an error, others by a handover."""
        self.closed = True
        error = _shutdown_error()
        for slot in [*self.slots]:
            if slot.run is not None:
                slot.run.interrupt(error)
            elif isinstance(slot.active, DetachedRun):
                slot.active.hand_over(error)
        self.notifications.close()

    async def close(self) -> None:
        """Interrupt active runs and wait for all tasks."""
        self.interrupt()
        if len(self.tasks):
            await self.tasks.close(_CLOSE_SECONDS)
            await self.notify_servers(QUEUE)  # other servers may have a slot for responses that were handed over
        await self._check_tasks.close()

    def _start(
        self,
        slot: RunSlot,
        tenant: str,
        planned: PlannedResponse,
        owned_row: OwnedRow,
        live_writer: LiveWriter | None = None,
    ) -> tuple[DetachedRun, asyncio.Task[None]]:
        detached_run = DetachedRun(tenant, planned, owned_row, live_writer, self._settings, self.on_end)
        slot.register(detached_run)
        task = self.tasks.start(detached_run.execute())
        task.add_done_callback(lambda _: slot.release())
        if self.closed:
            detached_run.hand_over(_shutdown_error())
        return detached_run, task

    async def _verify_ownership(self, active: ActiveRun) -> None:
        tenant, response_id = active.tenant, active.opening.id
        try:
            while self._pending_checks[response_id]:
                if (delay := active.get_echo_delay()) > 0:
                    await asyncio.sleep(delay)
                    continue
                self._pending_checks[response_id] = False
                if active.should_verify():
                    active.verify_ownership(await self.store.get(tenant, response_id, with_request=False))
        except Unavailable as error:
            log.warning("the ownership of %s could not be checked: %s", response_id, error)
        finally:
            del self._pending_checks[response_id]


def _shutdown_error() -> Unavailable:
    return Unavailable("The server is shutting down.", retry_after=2.0)
