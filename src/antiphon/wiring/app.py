"""Build the application that a Config describes, without a listening socket."""

from importlib.metadata import version
from typing import Any

from antiphon.config import Config
from antiphon.config.settings import settings
from antiphon.config.sources import load
from antiphon.core.stream_lanes import LaneLimits
from antiphon.egress import EgressClient, EgressPolicy
from antiphon.engines.base import Engine
from antiphon.engines.factory import build_pool
from antiphon.errors import StartupError
from antiphon.observe import Metrics
from antiphon.service.conversations import Conversations
from antiphon.service.operations.observability import Observability
from antiphon.service.operations.reload import check_output_formats
from antiphon.service.persistence.stored_responses import IncludeView, StoredResponses
from antiphon.stores.live.base import LiveLog
from antiphon.stores.sql.store import Store
from antiphon.transport.endpoints.capabilities import CapabilitiesEndpoint
from antiphon.transport.endpoints.chat import AnthropicEndpoint, chat_route, completions_route
from antiphon.transport.endpoints.conversations import ConversationsEndpoint
from antiphon.transport.endpoints.engine_tasks import EmbeddingsEndpoint, PassthroughEndpoint, TokensEndpoint
from antiphon.transport.endpoints.openapi import DocsEndpoint
from antiphon.transport.endpoints.responses import CompactEndpoint, InputTokensEndpoint, ResponsesEndpoint
from antiphon.transport.endpoints.stored_responses import StoredResponsesEndpoint, ToolOutputsEndpoint, TracesEndpoint
from antiphon.transport.endpoints.system import SystemEndpoints
from antiphon.transport.middleware.app import App
from antiphon.transport.middleware.auth import Authenticator
from antiphon.transport.middleware.rate_limiting import RateLimitingMiddleware
from antiphon.transport.middleware.request_tracing import RequestTracing
from antiphon.transport.middleware.routing import Route
from antiphon.transport.middleware.standard_headers import StandardHeaders
from antiphon.transport.process.supervisor import WorkerContext
from antiphon.transport.streaming.delivery import Delivery
from antiphon.transport.streaming.legacy_events import legacy_format_from_config
from antiphon.transport.websocket.connection import WebSocketSettings
from antiphon.transport.websocket.endpoint import ConnectionBounds, WebSocketEndpoint
from antiphon.transport.websocket.response_task import ResponseTask
from antiphon.wiring.components import ServerComponents, ServerLifecycle, build_live, build_store


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
    egress = egress or EgressClient(EgressPolicy(config.tools.allow_egress))
    worker_limits = None if worker is None else worker.shared_limits
    components = ServerComponents(config, engine, observability, store, live, egress, worker_limits)
    authenticator = Authenticator(config, components.api_keys)
    authenticator.load_monitor = components.load_monitor
    rate_limiting = RateLimitingMiddleware(components.rate_limits, components.shared_limits)
    delivery = Delivery(config.server.ping_interval, legacy_format_from_config(config, rate_limiting))
    websockets = _websocket_endpoint(config, components, authenticator, metrics, rate_limiting, delivery)
    system = SystemEndpoints(components.models, metrics, authenticator, version("antiphon"), components.probe)
    routes = [*_api_routes(config, components, delivery), *system.routes()]
    documented = [*routes, *DocsEndpoint(routes, version("antiphon"), config.limits).routes()]
    if config.server.websocket == "on":
        documented.append(websockets.route())
    observability.register_gauges(components, websockets.__len__, websockets.load)
    lifecycle = ServerLifecycle(components, websockets.drain)
    headers = StandardHeaders(config.compatibility, components.loads)
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


def _api_routes(config: Config, components: ServerComponents, delivery: Delivery) -> list[Route]:
    store_enabled = not config.storage.disable_store
    stored = StoredResponses(
        components.store, components.live, components.forget_response, IncludeView(components.keyring), store_enabled
    )
    conversations = Conversations(
        components.store, components.history, config.limits, components.keyring, store_enabled
    )
    example_model = next((model.id for model in components.models.models()), "MODEL")
    return [
        ResponsesEndpoint(components.responses, config.limits, components.parts, delivery).route(example_model),
        InputTokensEndpoint(components.input_token_counter, config.limits, components.parts).route(example_model),
        CompactEndpoint(components.compactions, config.limits).route(example_model),
        chat_route(components.completions, config.limits, components.parts, delivery, example_model),
        completions_route(components.completions, config.limits, components.parts, delivery, example_model),
        *AnthropicEndpoint(components.completions, config.limits, components.parts, delivery).routes(example_model),
        EmbeddingsEndpoint(components.engine_tasks, config.limits).route(example_model),
        *TokensEndpoint(components.tokenization, config.limits).routes(example_model),
        *PassthroughEndpoint(components.engine_tasks, config.limits).routes(example_model),
        *StoredResponsesEndpoint(stored, components.detached_runs, components.background_runs, delivery).routes(),
        ToolOutputsEndpoint(components.tool_outputs, stored, config.limits, config.tools.max_tool_output_bytes).route(),
        *ConversationsEndpoint(conversations, config.limits).routes(),
        TracesEndpoint(components.observability.traces).route(),
        CapabilitiesEndpoint(components.models, components.toolkit, components.request_policy.compat).route(),
    ]


def _websocket_endpoint(
    config: Config,
    components: ServerComponents,
    authenticator: Authenticator,
    metrics: Metrics,
    rate_limiting: RateLimitingMiddleware,
    delivery: Delivery,
) -> WebSocketEndpoint:
    single_lane = config.server.websocket_lanes == "off"
    settings = WebSocketSettings(
        limits=config.limits,
        parts=components.parts,
        lanes=LaneLimits(max_waiting_bytes=config.limits.body_bytes, exclusive=single_lane),
        cache_bytes=config.server.websocket_cache_bytes,
        lifetime=config.server.websocket_lifetime,
        warning=config.server.websocket_warning,
    )
    bounds = ConnectionBounds(
        all=config.server.max_websocket_connections, per_key=config.server.max_websocket_connections_per_key
    )
    response_task = ResponseTask(components.responses, authenticator, metrics, delivery, rate_limiting)
    return WebSocketEndpoint(response_task, authenticator, settings, bounds)
