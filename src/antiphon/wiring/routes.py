"""What a server answers to: every route of the API, and the WebSockets."""

from antiphon.config import Config
from antiphon.core.stream_lanes import LaneBounds
from antiphon.observe import Metrics
from antiphon.service.conversations import Conversations
from antiphon.service.engine_tasks import Embeddings, Relays
from antiphon.service.persistence.include_view import Showing
from antiphon.service.persistence.stored_responses import Stored
from antiphon.transport.endpoints.anthropic import MessagesEndpoint
from antiphon.transport.endpoints.capabilities import CapabilitiesEndpoint
from antiphon.transport.endpoints.chat import chat_route, completions_route
from antiphon.transport.endpoints.conversations import ConversationsEndpoint
from antiphon.transport.endpoints.embeddings import EmbeddingsEndpoint
from antiphon.transport.endpoints.passthrough import RelaysEndpoint
from antiphon.transport.endpoints.responses import CompactEndpoint, InputTokensEndpoint, ResponsesEndpoint
from antiphon.transport.endpoints.stored_responses import StoredEndpoint, ToolOutputsEndpoint, TracesEndpoint
from antiphon.transport.endpoints.tokens import TokensEndpoint
from antiphon.transport.http.request import Route
from antiphon.transport.middleware.auth import Guard
from antiphon.transport.middleware.rate_limiting import Metering
from antiphon.transport.streaming.delivery import Delivery
from antiphon.transport.streaming.legacy_events import Manner, manner
from antiphon.transport.websocket.connection import SocketSettings
from antiphon.transport.websocket.endpoint import ConnectionBounds, WebSocketEndpoint
from antiphon.transport.websocket.response_task import Responding
from antiphon.wiring.components import Parts


def api_routes(config: Config, parts: Parts, told: Manner | None) -> list[Route]:
    keeps, delivery = not config.disable_store, Delivery(config.ping_interval, told)
    stored = Stored(parts.store, parts.live, parts.deleted, Showing(parts.keyring), keeps)
    conversations = Conversations(parts.store, parts.past, config.limits, parts.keyring, keeps)
    shown = next((model.id for model in parts.models.models()), "MODEL")
    return [
        ResponsesEndpoint(parts.responses, config.limits, delivery).route(shown),
        InputTokensEndpoint(parts.counting, config.limits).route(shown),
        CompactEndpoint(parts.compactions, config.limits).route(shown),
        chat_route(parts.chat, config.limits, config.ping_interval, shown),
        completions_route(parts.completions, config.limits, config.ping_interval, shown),
        *MessagesEndpoint(parts.messages, config.limits, config.ping_interval).routes(shown),
        EmbeddingsEndpoint(Embeddings(parts.doing), config.limits).route(shown),
        *TokensEndpoint(parts.tokens, config.limits).routes(shown),
        *RelaysEndpoint(Relays(parts.doing), config.limits).routes(shown),
        *StoredEndpoint(stored, parts.following, parts.jobs, delivery).routes(),
        ToolOutputsEndpoint(parts.tool_outputs, stored, config.limits, config.max_tool_output_bytes).route(),
        *ConversationsEndpoint(conversations, config.limits).routes(),
        TracesEndpoint(parts.observing.traces).route(),
        CapabilitiesEndpoint(parts.models, parts.toolkit, parts.meaning.compat).route(),
    ]


def websocket_endpoint(
    config: Config, parts: Parts, guard: Guard, metrics: Metrics, metering: Metering
) -> WebSocketEndpoint:
    alone = config.websocket_lanes == "off"
    settings = SocketSettings(
        limits=config.limits,
        lanes=LaneBounds(waiting_bytes=config.limits.body_bytes, alone=alone),
        cache_bytes=config.websocket_cache_bytes,
        lifetime=config.websocket_lifetime,
        warning=config.websocket_warning,
    )
    bounds = ConnectionBounds(all=config.max_websocket_connections, per_key=config.max_websocket_connections_per_key)
    told = manner(config, metering)
    responding = Responding(parts.responses, guard, metrics, config.ping_interval, metering, told)
    return WebSocketEndpoint(responding, guard, settings, bounds)
