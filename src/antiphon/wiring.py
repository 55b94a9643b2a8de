"""The only file that knows everyone: Config → engine, store → service → app."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib.metadata import version

from msgspec import Struct

from antiphon.agent.loop import Bounds as LoopBounds
from antiphon.agent.patience import Deadlines
from antiphon.config import Config
from antiphon.config.reasoning_keys import read_keys
from antiphon.core.lanes import LaneBounds
from antiphon.egress import Egress, Policy
from antiphon.engines.base import Engine
from antiphon.engines.building import Progress, build_pool
from antiphon.engines.building import build_engine as build_engine
from antiphon.observe import Metrics, set_up_logging
from antiphon.service.approvals import Approvals
from antiphon.service.attachments import Attachments
from antiphon.service.chat import Chat
from antiphon.service.compactions import Compactions
from antiphon.service.completions import Completions
from antiphon.service.conversations import Conversations
from antiphon.service.counting import Counting
from antiphon.service.doing import Doing
from antiphon.service.embeddings import Embeddings
from antiphon.service.exchanges import Exchanges
from antiphon.service.following import Following
from antiphon.service.jobs import Jobs, JobSettings
from antiphon.service.keeping import Keeper, Keeping
from antiphon.service.messages import Messages
from antiphon.service.models import Models
from antiphon.service.naming import OutputTokens, naming
from antiphon.service.past import Past
from antiphon.service.planner import Planner, Terms
from antiphon.service.relays import Relays
from antiphon.service.reloading import Reloading, check_reading
from antiphon.service.responses import Responses
from antiphon.service.sealing import Keyring, new_key
from antiphon.service.sessions import Sessions, SessionSettings
from antiphon.service.showing import Showing
from antiphon.service.stored import Stored
from antiphon.service.tally import Tally
from antiphon.service.tasks import Tasks
from antiphon.service.tokens import Tokens
from antiphon.service.tool_outputs import ToolOutputs, ToolOutputSettings
from antiphon.service.toolkit import Toolkit, built_in_tools
from antiphon.stores.base import Bounds, Store
from antiphon.stores.live.base import LiveLog
from antiphon.stores.live.registry import live_log
from antiphon.stores.registry import make_store
from antiphon.tools.mcp.mcp import Mcp
from antiphon.tools.mcp.settings import settings_of
from antiphon.transport import server
from antiphon.transport.app import App
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
from antiphon.transport.openapi import Docs
from antiphon.transport.relays import RelaysEndpoint
from antiphon.transport.responses import ResponsesEndpoint
from antiphon.transport.stored import StoredEndpoint
from antiphon.transport.system import System
from antiphon.transport.tokens import TokensEndpoint
from antiphon.transport.tool_outputs import ToolOutputsEndpoint
from antiphon.transport.websocket.endpoint import ConnectionBounds, WebSocketEndpoint
from antiphon.transport.websocket.responding import Responding
from antiphon.transport.websocket.socket import SocketSettings

Announce = Callable[[str, list[str]], None]

_MEMORY = "memory"
_MOST_BYTES = 10 * 1024**3
_MOST_BYTES_IN_MEMORY = 512 * 1024**2
_REASONING_KEY = "reasoning_key"  # under which the store has it, if the operator gave none
_LAST_WRITES = 5.0  # seconds for what is still to be written when everything is closed


class Parts(Struct, frozen=True, kw_only=True):
    """What lives as long as the server."""

    store: Store
    live: LiveLog
    engine: Engine
    models: Models
    past: Past
    keyring: Keyring
    keeper: Keeper
    sessions: Sessions
    following: Following
    jobs: Jobs
    responses: Responses
    exchanges: Exchanges
    counting: Counting
    compactions: Compactions
    messages: Messages
    chat: Chat
    completions: Completions
    doing: Doing
    tokens: Tokens
    tool_outputs: ToolOutputs
    toolkit: Toolkit

    async def deleted(self, tenant: str, response_id: str) -> None:
        """A response was deleted: nobody here goes on with it."""
        self.past.forget(tenant, response_id)
        await self.sessions.deleted(tenant, response_id)


class Lifecycle:
    """What is opened before the first request and closed after the last, in the reverse order."""

    def __init__(self, parts: Parts, rest: Callable[[], None]) -> None:
        """`rest`: what is done when the doors are closed."""
        self.parts = parts
        self._rest = rest
        self.reloading: Reloading | None = None  # if the settings can be read again
        self._opened = AsyncExitStack()
        self._beating, self._scanning = Tasks(), Tasks()

    async def open(self) -> None:
        """What is only half open when something goes wrong is closed too."""
        parts, opened = self.parts, self._opened
        opened.push_async_callback(parts.store.close)
        await parts.store.open()
        if not parts.keyring:
            parts.keyring.add(await parts.store.shared(_REASONING_KEY, new_key()))
        opened.push_async_callback(parts.live.close)
        await parts.live.open(parts.sessions.hear)
        opened.push_async_callback(parts.toolkit.close)
        opened.push_async_callback(parts.engine.close)
        await parts.engine.open()
        self._beating.start(parts.models.attend())
        self._beating.start(parts.keeper.attend())
        opened.push_async_callback(self._beating.close)
        opened.push_async_callback(parts.keeper.drain, _LAST_WRITES)
        opened.push_async_callback(parts.sessions.close)
        self._scanning.start(parts.jobs.attend())
        opened.push_async_callback(self._scanning.close)

    async def close(self) -> None:
        await self._opened.aclose()

    def busy(self) -> bool:
        return self.parts.sessions.busy()

    def reload(self) -> None:
        if self.reloading is not None:
            self._beating.start(self.reloading.read())

    def rest(self) -> None:
        self.parts.jobs.rest()
        self._rest()

    def interrupt(self) -> None:
        self.parts.responses.interrupt()
        self.parts.exchanges.interrupt()


def serve(config: Config, announce: Announce, progress: Progress, again: Callable[[], Config] | None = None) -> None:
    """Until a signal comes. `announce` is told the address and the models once clients can connect; `again` reads the
    settings anew."""
    set_up_logging(config.log_format, config.log_level)
    pool = build_pool(config, progress)
    app = build_app(config, pool)
    life = app.lifecycle
    assert isinstance(life, Lifecycle)  # as build_app makes it
    models = life.parts.models
    if again is not None:
        life.reloading = Reloading(config, again, pool, models)

    def tell(address: str) -> None:
        announce(address, [model.id for model in models.models()])

    server.serve(app, config, tell)


def build_app(
    config: Config,
    engine: Engine,
    store: Store | None = None,
    live: LiveLog | None = None,
    egress: Egress | None = None,
) -> App:
    """A store, a live log or a way out that is given is used as it is."""
    check_reading(config)
    metrics = Metrics(version("antiphon"))
    store = store or build_store(config)
    egress = egress or Egress(Policy(config.allow_egress))
    parts = _build_parts(config, engine, metrics, store, live or build_live(config, store), egress)
    guard = Guard(config)
    sockets = _websocket(config, parts, guard, metrics)
    routes = [*_api(config, parts), *System(parts.models, metrics, guard, version("antiphon"), store).routes()]
    documented = [*routes, *Docs(routes, version("antiphon")).routes()]
    if config.websocket == "on":
        documented.append(sockets.route())
    metrics.watch_sockets(sockets.__len__)
    metrics.watch_engines(parts.models.states)
    return App(documented, guard, metrics, Lifecycle(parts, sockets.rest))


def build_toolkit(config: Config, egress: Egress, store: Store, outputs: ToolOutputs) -> Toolkit:
    mcp = Mcp(settings_of(config), egress)
    return Toolkit(mcp, built_in_tools(config, egress), Approvals(store, config.store_ttl), outputs)


def build_store(config: Config) -> Store:
    return make_store(config.store_place, config.store_ttl)


def build_live(config: Config, store: Store) -> LiveLog:
    return live_log(config.live, store, config.background_timeout)


def _build_parts(
    config: Config, engine: Engine, metrics: Metrics, store: Store, live: LiveLog, egress: Egress
) -> Parts:
    models = Models([engine], naming=naming(config), queue=config.queue)
    past, tally = Past(store), Tally(metrics)
    sessions = Sessions(store, live, _session_settings(config), tally.ended)
    attachments = Attachments(egress, config.limits, config.egress_timeout)
    outputs = ToolOutputs(store, live, sessions.words, _tool_outputs(config), attachments)
    toolkit = build_toolkit(config, egress, store, outputs)
    keyring = Keyring(read_keys(config.reasoning_key))
    planner = Planner(models, past, _terms(config), attachments, keyring, toolkit)
    keeper = Keeper(store, live, _keeping(config, store), past.remember)
    following = Following(store, live, sessions)
    jobs = Jobs(keeper, planner, sessions, following, _job_settings(config))
    exchanges, counting = Exchanges(planner, sessions, tally), Counting(planner, config.queue)
    doing = Doing(models, config.run_timeout)
    metrics.watch_queue(running=lambda: sessions.count() - models.waiting(), waiting=models.waiting)
    return Parts(
        store=store,
        live=live,
        engine=engine,
        models=models,
        past=past,
        keyring=keyring,
        keeper=keeper,
        sessions=sessions,
        following=following,
        jobs=jobs,
        responses=Responses(planner, keeper, sessions, following, jobs, tally),
        exchanges=exchanges,
        counting=counting,
        compactions=Compactions(planner, exchanges, keyring),
        messages=Messages(models, planner, exchanges, counting),
        chat=Chat(planner, exchanges),
        completions=Completions(planner, exchanges),
        doing=doing,
        tokens=Tokens(doing, planner, config.queue),
        tool_outputs=outputs,
        toolkit=toolkit,
    )


def _api(config: Config, parts: Parts) -> list[Route]:
    keeps, delivery = not config.disable_store, Delivery(config.ping_interval)
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
        CapabilitiesEndpoint(parts.models, parts.toolkit).route(),
    ]


def _websocket(config: Config, parts: Parts, guard: Guard, metrics: Metrics) -> WebSocketEndpoint:
    alone = config.websocket_lanes == "off"
    settings = SocketSettings(
        limits=config.limits,
        lanes=LaneBounds(waiting_bytes=config.limits.body_bytes, alone=alone),
        cache_bytes=config.websocket_cache_bytes,
        lifetime=config.websocket_lifetime,
        warning=config.websocket_warning,
    )
    bounds = ConnectionBounds(all=config.max_websocket_connections, per_key=config.max_websocket_connections_per_key)
    responding = Responding(parts.responses, guard, metrics, config.ping_interval)
    return WebSocketEndpoint(responding, guard, settings, bounds)


def _tool_outputs(config: Config) -> ToolOutputSettings:
    return ToolOutputSettings(timeout=config.tool_output_timeout, always=config.wait_for_tool_outputs)


def _terms(config: Config) -> Terms:
    return Terms(
        room=OutputTokens(default=config.default_output_tokens, most=config.max_output_tokens),
        deadlines=Deadlines(first=config.first_token_timeout, idle=config.idle_timeout, total=config.run_timeout),
        stores=not config.disable_store,
        insists=config.insist,
        bounds=LoopBounds(turns=config.max_turns, at_once=config.tools_at_once),
    )


def _keeping(config: Config, store: Store) -> Keeping:
    most_bytes = config.store_max_bytes or (_MOST_BYTES_IN_MEMORY if store.name == _MEMORY else _MOST_BYTES)
    return Keeping(
        lease=config.lease_seconds,
        ttl=config.store_ttl,
        background_room=config.background_queue,
        background_timeout=config.background_timeout,
        bounds=Bounds(
            entries=config.store_max_entries, bytes=most_bytes, conversations=config.conversation_max_entries
        ),
    )


def _session_settings(config: Config) -> SessionSettings:
    return SessionSettings(
        most=config.max_active_sessions, keep_streams=config.keep_streams, lease=config.lease_seconds
    )


def _job_settings(config: Config) -> JobSettings:
    return JobSettings(slots=config.background_slots, attempts=config.background_attempts, lease=config.lease_seconds)
