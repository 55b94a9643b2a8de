"""Opens the components before the first request and closes them after the last one."""

from collections.abc import Callable
from contextlib import AsyncExitStack

from antiphon.offload import BackgroundTasks
from antiphon.service.keyring import new_key
from antiphon.service.operations.reload import SettingsReloader
from antiphon.wiring.components import ServerComponents

_REASONING_KEY = "reasoning_key"  # name of the generated key in the store, if none is configured
_DRAIN_SECONDS = 5.0  # seconds for pending writes at shutdown


class ServerLifecycle:
    """Opens the components before the first request and closes them in reverse order after the last one."""

    def __init__(self, components: ServerComponents, on_drain: Callable[[], None]) -> None:
        """`on_drain` is called when the server stops accepting requests."""
        self.components = components
        self._on_drain = on_drain
        self.reloader: SettingsReloader | None = None  # None: the settings cannot be reloaded
        self._exit_stack = AsyncExitStack()
        self._maintenance, self._queue_tasks = BackgroundTasks(), BackgroundTasks()

    async def open(self) -> None:
        """Open all components. After a failure, `close` also closes those that are only partly open."""
        components, exit_stack = self.components, self._exit_stack
        exit_stack.push_async_callback(components.observability.close)
        components.observability.open()
        exit_stack.push_async_callback(components.store.close)
        await components.store.open()
        await components.api_keys.open()
        if not components.keyring:
            components.keyring.add(await components.store.shared(_REASONING_KEY, new_key()))
        exit_stack.push_async_callback(components.live.close)
        await components.live.open(components.detached_runs.on_notification)
        exit_stack.push_async_callback(components.toolkit.close)
        exit_stack.push_async_callback(components.engine.close)
        await components.engine.open()
        self._maintenance.start(components.models.run_forever())
        self._maintenance.start(components.writer.run_forever())
        self._maintenance.start(components.api_keys.run_forever())
        self._maintenance.start(components.load_monitor.run_forever())
        self._maintenance.start(components.probe.run_forever())
        if components.shared_limits is not None:
            self._maintenance.start(components.shared_limits.run_forever(components.rate_limits))
        if (worker_metrics := components.observability.metrics.worker_metrics) is not None:
            self._maintenance.start(worker_metrics.publish_periodically())
        exit_stack.push_async_callback(self._maintenance.close)
        exit_stack.push_async_callback(components.writer.drain, _DRAIN_SECONDS)
        exit_stack.push_async_callback(components.detached_runs.close)
        self._queue_tasks.start(components.background_runs.run_queue())
        exit_stack.push_async_callback(self._queue_tasks.close)

    async def close(self) -> None:
        await self._exit_stack.aclose()

    def is_busy(self) -> bool:
        return self.components.detached_runs.is_busy()

    def reload(self) -> None:
        if self.reloader is not None:
            self._maintenance.start(self.reloader.reload())
            self._maintenance.start(self.components.request_policy.prompts.reload())

    def drain(self) -> None:
        self.components.background_runs.stop_claiming()
        self._on_drain()

    def interrupt(self) -> None:
        self.components.detached_runs.interrupt()
