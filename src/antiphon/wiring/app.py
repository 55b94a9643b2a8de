"""Build the application that a Config describes, without a listening socket."""

from importlib.metadata import version
from typing import Any

from antiphon.config import Config
from antiphon.config.settings import settings
from antiphon.config.sources import load
from antiphon.egress import EgressClient, EgressPolicy
from antiphon.engines.base import Engine
from antiphon.engines.factory import build_pool
from antiphon.errors import StartupError
from antiphon.observe import Metrics
from antiphon.service.operations.observability import Observability
from antiphon.service.operations.reload import check_output_formats
from antiphon.stores.base import Store
from antiphon.stores.live.base import LiveLog
from antiphon.transport.endpoints.openapi import DocsEndpoint
from antiphon.transport.endpoints.system import SystemEndpoints
from antiphon.transport.middleware.app import App
from antiphon.transport.middleware.auth import Authenticator
from antiphon.transport.middleware.rate_limiting import RateLimitingMiddleware
from antiphon.transport.middleware.request_tracing import RequestTracing
from antiphon.transport.middleware.standard_headers import StandardHeaders
from antiphon.transport.process.supervisor import WorkerContext
from antiphon.transport.streaming.delivery import Delivery
from antiphon.transport.streaming.legacy_events import legacy_format_from_config
from antiphon.wiring.components import Infrastructure, build_components, build_live, build_store
from antiphon.wiring.lifecycle import ServerLifecycle
from antiphon.wiring.routes import api_routes, websocket_endpoint


def build_app(
    config: Config,
    engine: Engine,
    store: Store | None = None,
    live: LiveLog | None = None,
    egress: EgressClient | None = None,
    worker: WorkerContext | None = None,
) -> App:
    """Build the application. `store`, `live` and `egress` replace those of the settings.

    `worker` is set if this process is one of several workers.
    """
    check_output_formats(config)
    metrics = Metrics(version("antiphon"))
    if worker is not None:
        metrics.merge_workers(worker.shared_pages, worker.number)
    observability = Observability(config, metrics)
    store = observability.measure_store(store or build_store(config))
    live = observability.measure_live_log(live or build_live(config, store))
    infrastructure = Infrastructure(
        engine=engine,
        observability=observability,
        store=store,
        live=live,
        egress=egress or EgressClient(EgressPolicy(config.tools.allow_egress)),
        shared_limits=None if worker is None else worker.shared_limits,
    )
    components = build_components(config, infrastructure)
    authenticator = Authenticator(config, components.api_keys)
    authenticator.load_monitor, rate_limiting = (
        components.load_monitor,
        RateLimitingMiddleware(components.rate_limits, components.shared_limits),
    )
    delivery = Delivery(config.server.ping_interval, legacy_format_from_config(config, rate_limiting))
    websockets = websocket_endpoint(config, components, authenticator, metrics, rate_limiting, delivery)
    system = SystemEndpoints(components.models, metrics, authenticator, version("antiphon"), components.probe)
    routes = [*api_routes(config, components, delivery), *system.routes()]
    documented = [*routes, *DocsEndpoint(routes, version("antiphon"), config.limits).routes()]
    if config.server.websocket == "on":
        documented.append(websockets.route())
    observability.register_gauges(components.metric_sources(), websockets.__len__, websockets.load)
    lifecycle, headers = (
        ServerLifecycle(components, websockets.drain),
        StandardHeaders(config.compatibility, components.loads),
    )
    app = App(documented, authenticator, metrics, lifecycle, rate_limiting, headers, components.models.find_refusal)
    if observability.tracer is not None or observability.access_log is not None:
        app.tracing = websockets.set_tracing(RequestTracing(observability.tracer, observability.access_log))
    return app


def create_app(**values: Any) -> App:
    """Create the application from settings, by name: `create_app(engine="fake", store="memory")`.

    Other settings come from the environment and the configuration file, as with `antiphon serve`. Settings of the HTTP
    server, such as `port` and `workers`, have no effect. Raises StartupError.
    """
    rows = settings()
    if unknown := values.keys() - rows.keys():
        raise StartupError(f"{', '.join(sorted(unknown))}: not a setting; docs/configuration.md lists them.")
    repeated = {name for name, value in values.items() if rows[name].is_repeatable and isinstance(value, str)}
    config = load({name: [value] if name in repeated else value for name, value in values.items()})
    return build_app(config, build_pool(config))
