"""Start a server from its settings, in this process or in several worker processes."""

from collections.abc import Callable

from antiphon.config import Config
from antiphon.engines.base import ProgressCallback
from antiphon.engines.factory import build_pool
from antiphon.service.operations.reload import SettingsReloader
from antiphon.transport.process import server, supervisor
from antiphon.transport.process.supervisor import Announce
from antiphon.wiring.app import build_app
from antiphon.wiring.components import ServerLifecycle


def serve(
    config: Config, announce: Announce, progress: ProgressCallback, reload_config: Callable[[], Config] | None = None
) -> None:
    """Serve until a signal arrives.

    `announce` is called with the address and the models once clients can connect; `reload_config` reads the settings
    again.
    """
    if config.server.workers == 1:
        _serve_process(config, announce, progress, reload_config)
        return
    supervisor.check_config(config)
    supervisor.WorkerSupervisor(
        config, lambda worker: _serve_process(config, worker.announce, progress, reload_config, worker), announce
    ).run()


def _serve_process(
    config: Config,
    announce: Announce,
    progress: ProgressCallback,
    reload_config: Callable[[], Config] | None,
    worker: supervisor.WorkerContext | None = None,
) -> None:
    """Serve in this process, which may be one of several workers."""
    pool = build_pool(config, progress)
    app = build_app(config, pool, worker=worker)
    lifecycle = app.lifecycle
    assert isinstance(lifecycle, ServerLifecycle)  # as created by `build_app`
    models = lifecycle.components.models
    if reload_config is not None:
        lifecycle.reloader = SettingsReloader(
            config, reload_config, pool, models, lifecycle.components.api_keys, lifecycle.components.rate_limits
        )

    def announce_address(address: str) -> None:
        announce(address, [model.id for model in models.models()])

    server.serve(app, config, announce_address, None if worker is None else worker.sockets)
