"""Stops containers that have expired or were deleted, and notices those that were lost with their sandbox."""

import asyncio
import logging
from collections.abc import Mapping

from antiphon.errors import AntiphonError
from antiphon.service.containers.live_containers import LiveContainers

log = logging.getLogger(__name__)

_SWEEP_SECONDS = 10.0
_KEEP_SECONDS = 86_400.0  # that the row of an expired container is kept


class ContainerSweeper:
    def __init__(self, live: LiveContainers) -> None:
        self._live = live
        self.running = 0  # containers in this sandbox, at the last sweep
        self.levels: dict[str, int] = {}  # that of the sandbox, once it is known
        self._kills: Mapping[str, int] = {}

    @property
    def kills(self) -> dict[str, int]:
        """Containers whose processes were killed in the sandbox, or lost with it, by reason."""
        return {**self._kills, "lost": self._live.lost}

    async def run_forever(self) -> None:
        """Sweep until cancelled. Failures are logged, and repeated with the next sweep."""
        while self._live.is_enabled:
            await asyncio.sleep(_SWEEP_SECONDS)
            try:
                await self.sweep()
            except AntiphonError as error:
                log.warning("sweeping the containers failed: %s", error)

    async def sweep(self) -> None:
        live, store, name = self._live, self._live.store, self._live.sandbox.name
        for tenant, container_id in await store.list_due_containers(name):
            await live.stop(tenant, container_id)
        running = await store.list_running_containers(name)
        if running:  # otherwise the sandbox need not be started
            status = await live.sandbox.status()
            self._kills, self.levels = status.kills, {status.level: 1}
            for tenant, container_id in running:
                if container_id not in status.containers:
                    await live.note_loss(tenant, container_id)
        self.running = len(running)
        while await store.purge_containers(_KEEP_SECONDS):
            pass
