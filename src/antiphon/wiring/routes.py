"""All HTTP routes of the API, and the WebSocket endpoint."""

from antiphon.config import Config
from antiphon.core.stream_lanes import LaneLimits
from antiphon.observe import Metrics
from antiphon.service.conversations import Conversations
from antiphon.service.persistence.stored_responses import IncludeView, StoredResponses
from antiphon.transport.endpoints.anthropic import AnthropicEndpoint
from antiphon.transport.endpoints.capabilities import CapabilitiesEndpoint
from antiphon.transport.endpoints.chat import chat_route, completions_route
from antiphon.transport.endpoints.conversations import ConversationsEndpoint
from antiphon.transport.endpoints.embeddings import EmbeddingsEndpoint
from antiphon.transport.endpoints.passthrough import PassthroughEndpoint
from antiphon.transport.endpoints.responses import CompactEndpoint, InputTokensEndpoint, ResponsesEndpoint
from antiphon.transport.endpoints.stored_responses import StoredResponsesEndpoint, ToolOutputsEndpoint, TracesEndpoint
from antiphon.transport.endpoints.tokens import TokensEndpoint
from antiphon.transport.http.route import Route
from antiphon.transport.middleware.auth import Authenticator
from antiphon.transport.middleware.rate_limiting import RateLimitingMiddleware
from antiphon.transport.streaming.delivery import Delivery
from antiphon.transport.websocket.connection import WebSocketSettings
from antiphon.transport.websocket.endpoint import ConnectionBounds, WebSocketEndpoint
from antiphon.transport.websocket.response_task import ResponseTask
from antiphon.wiring.components import ServerComponents


def api_routes(config: Config, components: ServerComponents, delivery: Delivery) -> list[Route]:
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


def websocket_endpoint(
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
