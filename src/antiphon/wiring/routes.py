"""What a server answers to: every route of the API, and the WebSockets."""

from antiphon.config import Config
from antiphon.core.stream_lanes import LaneBounds
from antiphon.observe import Metrics
from antiphon.service.conversations import Conversations
from antiphon.service.engine_tasks import Embeddings, Relays
from antiphon.service.persistence.include_view import Showing
from antiphon.service.persistence.stored_responses import Stored
from antiphon.transport.capabilities import CapabilitiesEndpoint
from antiphon.transport.chat import chat_route
from antiphon.transport.compact import CompactEndpoint
from antiphon.transport.completions import completions_route
from antiphon.transport.conversations import ConversationsEndpoint
from antiphon.transport.delivery import Delivery
from antiphon.transport.embeddings import EmbeddingsEndpoint
from antiphon.transport.guard import Guard
from antiphon.transport.http import Route
from antiphon.transport.input_tokens import InputTokensEndpoint
from antiphon.transport.messages import MessagesEndpoint
from antiphon.transport.metering import Metering
from antiphon.transport.relays import RelaysEndpoint
from antiphon.transport.responses import ResponsesEndpoint
from antiphon.transport.retold import Manner, manner
from antiphon.transport.stored import StoredEndpoint
from antiphon.transport.tokens import TokensEndpoint
from antiphon.transport.tool_outputs import ToolOutputsEndpoint
from antiphon.transport.traces import TracesEndpoint
from antiphon.transport.websocket.endpoint import ConnectionBounds, WebSocketEndpoint
from antiphon.transport.websocket.responding import Responding
from antiphon.transport.websocket.socket import SocketSettings
from antiphon.wiring.parts import Parts


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
