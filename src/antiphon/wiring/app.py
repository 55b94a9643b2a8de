"""Build the application that a Config describes, without a listening socket."""

from typing import Any

from msgspec.structs import replace

from antiphon.config import Config
from antiphon.config.settings import settings
from antiphon.config.sources import load
from antiphon.egress import EgressClient, EgressPolicy
from antiphon.engines.base import Engine
from antiphon.engines.factory import build_pool
from antiphon.errors import StartupError
from antiphon.observe import Metrics
from antiphon.service.conversations import Conversations
from antiphon.service.operations.inbox import Inbox
from antiphon.service.operations.key_administration import KeyAdministration
from antiphon.service.operations.mcp_trials import McpTrials
from antiphon.service.operations.model_catalog import ModelCatalog
from antiphon.service.operations.observability import Observability
from antiphon.service.operations.reload import check_output_formats
from antiphon.service.operations.response_log import ResponseLog
from antiphon.service.operations.user_agents import UserAgentLog
from antiphon.service.persistence.stored_responses import IncludeView, StoredResponses
from antiphon.stores.live.base import LiveLog
from antiphon.stores.registry import make_live_log, make_store
from antiphon.stores.sql.store import Store
from antiphon.transport.endpoints.chat import CompletionsEndpoint
from antiphon.transport.endpoints.containers import ContainersEndpoint
from antiphon.transport.endpoints.conversations import ConversationsEndpoint
from antiphon.transport.endpoints.engine_tasks import EngineTasksEndpoint
from antiphon.transport.endpoints.files import FilesEndpoint
from antiphon.transport.endpoints.images import ImagesEndpoint
from antiphon.transport.endpoints.moderations import ModerationsEndpoint
from antiphon.transport.endpoints.openapi import DocsEndpoint
from antiphon.transport.endpoints.responses import ResponsesEndpoint
from antiphon.transport.endpoints.skills import SkillsEndpoint
from antiphon.transport.endpoints.stored_responses import StoredResponsesEndpoint
from antiphon.transport.endpoints.vector_store_files import StoreFilesEndpoint
from antiphon.transport.endpoints.vector_stores import VectorStoresEndpoint
from antiphon.transport.middleware.app import App
from antiphon.transport.middleware.auth import Authenticator
from antiphon.transport.middleware.rate_limiting import RateLimitingMiddleware
from antiphon.transport.middleware.request_tracing import RequestTracing
from antiphon.transport.middleware.routing import Route, Router, collect_routes
from antiphon.transport.middleware.standard_headers import StandardHeaders
from antiphon.transport.operating.activity import ActivityEndpoint
from antiphon.transport.operating.administration import AdministrationEndpoint
from antiphon.transport.operating.capabilities import CapabilitiesEndpoint
from antiphon.transport.operating.clients import ClientsEndpoint
from antiphon.transport.operating.inspection import InspectionEndpoint
from antiphon.transport.operating.mcp import McpEndpoint
from antiphon.transport.operating.page import PageEndpoint
from antiphon.transport.operating.system import SystemEndpoints
from antiphon.transport.process.supervisor import WorkerContext
from antiphon.transport.streaming.delivery import Delivery
from antiphon.transport.streaming.legacy_events import legacy_format_from_config
from antiphon.transport.websocket.endpoint import WebSocketEndpoint
from antiphon.transport.websocket.response_task import ResponseTask
from antiphon.version import VERSION
from antiphon.wiring.components import ServerComponents, ServerLifecycle


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
    metrics = Metrics(VERSION)
    if worker is not None:
        metrics.merge_workers(worker.shared_pages, worker.number)
    observability = Observability(config, metrics)
    storage = config.storage
    store = observability.measure(store or make_store(storage.store_location, storage.store_ttl), "store")
    live = live or make_live_log(storage.live, store, storage.background_timeout)
    live = observability.measure(live, "live")
    egress = egress or EgressClient(EgressPolicy(config.tools.allow_egress))
    worker_limits = None if worker is None else worker.shared_limits
    components = ServerComponents(config, engine, observability, store, live, egress, worker_limits)
    authenticator = Authenticator(config, components.api_keys)
    authenticator.load_monitor = components.load_monitor
    rate_limiting = RateLimitingMiddleware(components.rate_limits, components.shared_limits)
    delivery = Delivery(config.server.ping_interval, legacy_format_from_config(config, rate_limiting))
    response_task = ResponseTask(components.responses, authenticator, metrics, delivery, rate_limiting)
    websockets = WebSocketEndpoint(response_task, authenticator, config, components.parts)
    system = SystemEndpoints(components.models, metrics, authenticator, VERSION, components.probe, components.images)
    operating = _operating_routes(config, components, delivery, authenticator)
    clients = ClientsEndpoint(ModelCatalog(components.models, components.images), UserAgentLog())
    routes = [*_api_routes(config, components, delivery), *operating, *collect_routes(clients, system)]
    example_model = next((model.id for model in components.models.models()), "MODEL")
    docs = DocsEndpoint(routes, VERSION, config.limits, example_model)
    routes += collect_routes(docs, *([websockets] if config.server.websocket == "on" else []))
    routes += collect_routes(PageEndpoint()) if config.server.serves_page else []
    observability.register_gauges(components, websockets.__len__, websockets.load)
    lifecycle = ServerLifecycle(components, websockets.drain)
    headers = StandardHeaders(config.compatibility, components.loads)
    app = App(Router(routes), authenticator, metrics, lifecycle, rate_limiting, headers, components.models.find_refusal)
    app.user_agents = clients.user_agents
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
        components.store,
        components.live,
        components.forget_response,
        IncludeView(components.keyring, components.stored_images),
        store_enabled,
    )
    conversations = Conversations(
        components.store, components.history, config.limits, components.keyring, store_enabled, components.stored_images
    )
    limits, parts = config.limits, components.parts
    counter, compactions = components.input_token_counter, components.compactions
    engine_tasks = EngineTasksEndpoint(components.engine_tasks, components.tokenization, limits)
    routes = collect_routes(
        ResponsesEndpoint(components.responses, counter, compactions, limits, parts, delivery),
        CompletionsEndpoint(components.completions, limits, parts, delivery),
        engine_tasks,
        ModerationsEndpoint(components.moderator, limits),
        ImagesEndpoint(components.images, components.attachments, limits, delivery),
        StoredResponsesEndpoint(
            stored,
            components.detached_runs,
            components.background_runs,
            components.tool_outputs,
            components.observability.traces,
            replace(limits, body_bytes=min(limits.body_bytes, config.tools.max_tool_output_bytes)),
            delivery,
        ),
        ConversationsEndpoint(conversations, limits),
        FilesEndpoint(components.files, limits),
        VectorStoresEndpoint(components.vector_stores, limits),
        StoreFilesEndpoint(components.store_files, limits),
        ContainersEndpoint(components.containers, limits),
        SkillsEndpoint(components.skills, limits),
        CapabilitiesEndpoint(components.models, components.toolkit, components.request_policy.compat),
    )
    return [*routes, *engine_tasks.passthrough_routes()]


def _operating_routes(
    config: Config, components: ServerComponents, delivery: Delivery, authenticator: Authenticator
) -> list[Route]:
    """Return the routes below /v1/antiphon: what the server does, and its keys."""
    store, store_enabled = components.store, not config.storage.disable_store
    keys_enabled = store_enabled and store.name != "memory"
    return collect_routes(
        ActivityEndpoint(
            ResponseLog(store, store_enabled),
            components.activity_feed,
            Inbox(store, components.live, store_enabled),
            delivery,
            authenticator.recheck,
        ),
        InspectionEndpoint(components.inspection),
        AdministrationEndpoint(
            KeyAdministration(store, components.api_keys, components.rate_limits, keys_enabled),
            components.monitor,
            config.limits,
        ),
        McpEndpoint(McpTrials(components.toolkit, components.observability.metrics), config.limits),
    )
