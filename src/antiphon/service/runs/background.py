"""Background responses: the store is the queue, and this process runs as many as it has slots for.

    submit ── a slot is free ──▶ a detached run here
       └── else ──▶ released ──▶ queued ──▶ claimed by a server with a free slot

Order of claims (stores/sql/running_responses.py): priority, the tenant with the fewest running responses, age.

Responses of a server that died are claimed the same way after their lease has expired. After an outage of the store all
leases have expired; then only released rows are claimed until every server had time for a heartbeat. The same caution
applies after a start, since a new process cannot know whether the store was away.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from time import time

from antiphon.core.emitter.fold import ResponseEnding
from antiphon.core.replay import reset_response
from antiphon.errors import AntiphonError, Busy, ServerRestarted, Unavailable
from antiphon.observe.logs import LOG_CONTEXT, LogContext
from antiphon.offload import BackgroundTasks
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.tools import Credentials, McpTool
from antiphon.service.access.load_monitor import LoadMonitor, SheddingStage
from antiphon.service.persistence.live_updates import QUEUE, PriorLog, read_prior_log
from antiphon.service.persistence.response_writer import OwnedRow, ResponseWriter
from antiphon.service.persistence.rows import decode_response, restore_request
from antiphon.service.planning.planner import Continuation, PlannedResponse, Planner
from antiphon.service.runs.detached_runs import DetachedRuns
from antiphon.service.runs.follow import Follower
from antiphon.service.runs.takeover import Cancellation, continue_from, end_orphan, find_end_reason
from antiphon.stores.base import ClaimedResponse, OwnershipLost, StoredResponse

log = logging.getLogger(__name__)

MAX_RESPONSES = 10_000  # responses with credentials; the oldest are dropped above this


class BackgroundRuns:
    """Submits, claims and runs background responses."""

    def __init__(
        self,
        writer: ResponseWriter,
        planner: Planner,
        detached_runs: DetachedRuns,
        clock: Callable[[], float] = time,
        load: LoadMonitor | None = None,
    ) -> None:
        self._writer = writer
        self._planner = planner
        self._detached_runs = detached_runs
        self._settings = writer.settings
        self._clock = clock
        self._load = load
        self.cancel = Cancellation(writer, detached_runs, clock).cancel
        self._tasks = BackgroundTasks()
        self._credentials = CredentialCache()
        self._busy_slots = 0  # slots in use
        self._has_queued = False  # the queue may hold more than there were slots for
        self._stopping = False
        self._cautious_until = 0.0  # event loop time
        self.takeovers = 0  # claimed from servers that died

    async def submit(self, tenant: str, planned: PlannedResponse, owned_row: OwnedRow) -> Follower:
        """Run the response now, or leave it in the queue until a slot is free. Returns a source for clients that
        stream.

        Takes ownership of the planned response and its row.
        """
        opening = planned.opening
        if self._has_queued or self._busy_slots >= self._settings.background_slots or self._is_stopping():
            planned.leave()
            self._credentials.store(opening.id, planned.decoded.request)
            await self._requeue(owned_row)
            self._has_queued = True
            await self._detached_runs.notify_servers(QUEUE)
            return Follower(self._detached_runs, tenant, opening, planned.obfuscates)
        seconds = opening.created_at + self._settings.background_timeout - self._clock()
        self._occupy_slot(self._detached_runs.start_background(tenant, planned, owned_row, seconds=seconds))
        active = self._detached_runs.find(tenant, opening.id)
        return Follower(self._detached_runs, tenant, opening, planned.obfuscates, active=active)

    async def run_queue(self) -> None:
        """Claim queued responses and those of dead servers, until cancelled.

        On cancellation, claimed responses that do not run yet are released. Detached runs are closed by their owner.
        """
        now, due = asyncio.get_running_loop().time, 0.0
        self._cautious_until = now() + self._settings.lease_seconds / 2  # longer than a heartbeat interval
        try:
            with self._detached_runs.notifications.subscribe(QUEUE) as waiter:
                while True:
                    waiter.clear()
                    if now() >= due or self._busy_slots < self._settings.background_slots:
                        due = now() + self._settings.lease_seconds / 2
                        await self._scan_or_log()
                    else:
                        self._has_queued = True
                    await waiter.wait_for(due - now())
        finally:
            await self._tasks.close()

    def stop_claiming(self) -> None:
        """Claim nothing more: the server is about to stop."""
        self._stopping = True

    async def scan(self) -> None:
        """Claim responses for the free slots. Renews its own leases first, so as not to claim its own rows."""
        if self._is_stopping():
            return
        is_cautious = asyncio.get_running_loop().time() < self._cautious_until
        accepts_work = self._load is None or self._load.stage is SheddingStage.ALL
        free = max(0, self._settings.background_slots - self._busy_slots) if accepts_work else 0
        self._busy_slots += free  # reserve the slots during the claim
        try:
            await self._writer.leases.renew(force=is_cautious)
            claimed = await self._writer.store.claim(self._writer.leases.make_claim(), free, released=is_cautious)
        finally:
            self._busy_slots -= free
        self._has_queued = sum(each.row.background for each in claimed) >= free
        self.takeovers += sum(each.row.attempts > 1 for each in claimed)
        for each in claimed:
            task = self._tasks.start(self._run_claimed(each))
            if each.row.background:
                self._occupy_slot(task)

    async def _scan_or_log(self) -> None:
        try:
            await self.scan()
        except AntiphonError as error:
            # Longer than the interval of scans and heartbeats: if the next scan fails too, the caution starts anew.
            self._cautious_until = asyncio.get_running_loop().time() + self._settings.lease_seconds
            log.warning("the background queue could not be scanned: %s", error)

    def _is_stopping(self) -> bool:
        return self._stopping or self._detached_runs.closed

    def _occupy_slot(self, task: asyncio.Task[None]) -> None:
        """Occupy a slot while the task runs."""
        self._busy_slots += 1
        task.add_done_callback(self._free_slot)

    def _free_slot(self, task: asyncio.Task[None]) -> None:
        self._busy_slots -= 1
        if self._has_queued:
            self._detached_runs.notifications.notify(QUEUE)

    async def _run_claimed(self, claimed: ClaimedResponse) -> None:
        """Run a claimed response until it has ended or another server owns it."""
        row, run_task = claimed.row, None
        try:
            owned_row = await self._writer.adopt(claimed.tenant, row)
        except AntiphonError as error:
            log.warning("%s was claimed but could not be started: %s", row.id, error)
            await self._release_claim(claimed)
            return
        LOG_CONTEXT.set(LogContext(tenant=claimed.tenant, key=row.charged_key))
        try:
            run_task = await self._resume(owned_row, row)
        except ServerRestarted:
            log.info("%s was also claimed by another server", row.id)
        except (Unavailable, Busy) as error:
            log.warning("%s was claimed but could not be started: %s", row.id, error)
            await self._requeue(owned_row)
        except asyncio.CancelledError:
            await self._requeue(owned_row)
            raise
        finally:
            if run_task is None:
                owned_row.forget()
        del claimed, row  # releases the stored request, which may be large
        if run_task is not None:
            await asyncio.wait([run_task])

    async def _resume(self, owned_row: OwnedRow, row: StoredResponse) -> asyncio.Task[None] | None:
        previous = await read_prior_log(self._writer.live, owned_row.tenant, row.id) if row.background else PriorLog()
        if (error := find_end_reason(row, previous, self._settings.background_attempts, self._clock())) is None:
            opening, decoded = reset_response(decode_response(row.response)), restore_request(row)
            self._credentials.restore(row.id, decoded.request)
            try:
                planned = await self._planner.plan_response(
                    owned_row.tenant, decoded, Continuation(resumed=opening), patient=True
                )
                resumed = continue_from(planned, previous)
            except (Unavailable, Busy):
                self._credentials.store(row.id, decoded.request)
                raise
            # the request was valid once, but its model or the response that it continues is gone
            except AntiphonError as plan_error:
                error = plan_error
            else:
                seconds = None if row.deadline is None else row.deadline - self._clock()
                return self._detached_runs.start_background(owned_row.tenant, resumed, owned_row, previous, seconds)
        await end_orphan(owned_row, row, previous, ResponseEnding(status="failed", error=error), self._clock())
        return None

    async def _requeue(self, owned_row: OwnedRow) -> None:
        """Release the row to the queue. It is not claimed again at once, since the obstacle may persist."""
        self._has_queued = False
        try:
            await owned_row.release()
        except AntiphonError as error:  # its lease expires
            log.warning("%s could not be released to the queue: %s", owned_row.id, error)
            owned_row.forget()

    async def _release_claim(self, claimed: ClaimedResponse) -> None:
        """Release a claimed row that was not adopted. If that fails too, its lease expires."""
        self._has_queued = False
        with suppress(AntiphonError, OwnershipLost):
            await self._writer.store.release(claimed.tenant, claimed.row.id, claimed.row.fence)


class CredentialCache:
    """MCP credentials of queued responses: held in memory only, never in the store.

    A queued response that is taken over by another server, or whose server restarts, runs without them.
    """

    def __init__(self) -> None:
        self._credentials: dict[str, dict[str, Credentials]] = {}

    def store(self, response_id: str, request: CreateResponse) -> None:
        credentials = {tool.server_label: tool.credentials for tool in _mcp_tools(request)}
        if any(secret.headers or secret.authorization for secret in credentials.values()):
            self._credentials[response_id] = credentials
            if len(self._credentials) > MAX_RESPONSES:
                del self._credentials[next(iter(self._credentials))]

    def restore(self, response_id: str, request: CreateResponse) -> None:
        """Put the credentials back into the same request as loaded from the store, once."""
        credentials = self._credentials.pop(response_id, {})
        for tool in _mcp_tools(request):
            if tool.server_label in credentials:
                tool.set_credentials(credentials[tool.server_label])


def _mcp_tools(request: CreateResponse) -> list[McpTool]:
    return [tool for tool in request.tools if isinstance(tool, McpTool)]
