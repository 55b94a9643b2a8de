"""From settings to a server that runs: in this process, or in several workers."""

from collections.abc import Callable

from antiphon.config import Config
from antiphon.engines.factory import Progress, build_pool
from antiphon.observe import set_up_logging
from antiphon.service.operations.reload import Reloading
from antiphon.transport.process import server, supervisor
from antiphon.wiring.app import build_app
from antiphon.wiring.lifecycle import Lifecycle

Announce = Callable[[str, list[str]], None]


def serve(config: Config, announce: Announce, progress: Progress, again: Callable[[], Config] | None = None) -> None:
    """Until a signal comes. `announce` is told the address and the models once clients can connect; `again` reads the
    settings anew."""
    set_up_logging(config.log_format, config.log_level)
    if config.workers == 1:
        _serve(config, announce, progress, again)
        return
    supervisor.check(config)
    supervisor.Workers(config, lambda place: _serve(config, place.announce, progress, again, place), announce).run()


def _serve(
    config: Config,
    announce: Announce,
    progress: Progress,
    again: Callable[[], Config] | None,
    place: supervisor.Place | None = None,
) -> None:
    """By this process, which may be one of several workers."""
    pool = build_pool(config, progress)
    app = build_app(config, pool, place=place)
    life = app.lifecycle
    assert isinstance(life, Lifecycle)  # as build_app makes it
    models = life.parts.models
    if again is not None:
        life.reloading = Reloading(config, again, pool, models, life.parts.keys, life.parts.quotas)

    def tell(address: str) -> None:
        announce(address, [model.id for model in models.models()])

    server.serve(app, config, tell, None if place is None else place.sockets)
