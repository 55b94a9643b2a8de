"""A server without a socket: the application that a Config describes."""

from importlib.metadata import version

from antiphon.config import Config
from antiphon.egress import Egress, Policy
from antiphon.engines.base import Engine
from antiphon.observe import Metrics
from antiphon.service.operations.observability import Observing
from antiphon.service.operations.reload import check_reading
from antiphon.stores.base import Store
from antiphon.stores.live.base import LiveLog
from antiphon.transport.endpoints.openapi import Docs
from antiphon.transport.endpoints.system import System
from antiphon.transport.middleware.app import App
from antiphon.transport.middleware.auth import Guard
from antiphon.transport.middleware.rate_limiting import Metering
from antiphon.transport.middleware.request_tracing import Watching
from antiphon.transport.middleware.standard_headers import StandardHeaders
from antiphon.transport.process.supervisor import Place
from antiphon.transport.streaming.legacy_events import manner
from antiphon.wiring.components import Ground, build_live, build_parts, build_store
from antiphon.wiring.lifecycle import Lifecycle
from antiphon.wiring.routes import api_routes, websocket_endpoint


def build_app(
    config: Config,
    engine: Engine,
    store: Store | None = None,
    live: LiveLog | None = None,
    egress: Egress | None = None,
    place: Place | None = None,
) -> App:
    """A store, a live log or a way out that is given is used as it is. `place`: if it is one of several workers."""
    check_reading(config)
    metrics = Metrics(version("antiphon"))
    if place is not None:
        metrics.join(place.board, place.number)
    observing = Observing(config, metrics)
    store = observing.store(store or build_store(config))
    live = observing.live(live or build_live(config, store))
    ground = Ground(
        engine=engine,
        observing=observing,
        store=store,
        live=live,
        egress=egress or Egress(Policy(config.allow_egress)),
        till=None if place is None else place.till,
    )
    parts = build_parts(config, ground)
    guard = Guard(config, parts.keys)
    guard.pressure, metering = parts.pressure, Metering(parts.quotas, parts.sharing)
    sockets = websocket_endpoint(config, parts, guard, metrics, metering)
    told = manner(config, metering)
    system = System(parts.models, metrics, guard, version("antiphon"), parts.probe)
    routes = [*api_routes(config, parts, told), *system.routes()]
    documented = [*routes, *Docs(routes, version("antiphon"), config.limits).routes()]
    if config.websocket == "on":
        documented.append(sockets.route())
    observing.tell_of(parts.observed(), sockets.__len__, sockets.load)
    life, headers = Lifecycle(parts, sockets.rest), StandardHeaders(config, parts.loads)
    app = App(documented, guard, metrics, life, metering, headers, parts.models.turned_away)
    if observing.tracer is not None or observing.access_log is not None:
        app.watching = sockets.watch(Watching(observing.tracer, observing.access_log))
    return app
