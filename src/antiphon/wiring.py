"""The only file that knows everyone: Config → engine, store → service → app."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib.metadata import version

from msgspec import Struct

from antiphon.config import Config
from antiphon.config.api_keys import given_keys
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
from antiphon.service.jobs import Jobs
from antiphon.service.keeping import Keeper
from antiphon.service.keys import Keys
from antiphon.service.meaning import Meaning, meaning
from antiphon.service.messages import Messages
from antiphon.service.models import Models
from antiphon.service.naming import naming
from antiphon.service.observing import Observing
from antiphon.service.observing import Parts as Observed
from antiphon.service.past import Past
from antiphon.service.planner import Planner
from antiphon.service.pressure import Pressure, store_folder
from antiphon.service.probing import StoreProbe
from antiphon.service.quotas import Quotas
from antiphon.service.quotas_shared import Sharing, make_quotas
from antiphon.service.relays import Relays
from antiphon.service.reloading import Reloading, check_reading
from antiphon.service.responses import Responses
from antiphon.service.sealing import Keyring, new_key
from antiphon.service.sessions import Sessions
from antiphon.service.settings import job_settings, keeping_settings, session_settings, terms, tool_output_settings
from antiphon.service.showing import Showing
from antiphon.service.stored import Stored
from antiphon.service.tally import Tally
from antiphon.service.tasks import Tasks
from antiphon.service.tokens import Tokens
from antiphon.service.tool_outputs import ToolOutputs
from antiphon.service.toolkit import Toolkit, built_in_tools
from antiphon.stores.base import Store
from antiphon.stores.live.base import LiveLog
from antiphon.stores.live.registry import live_log
from antiphon.stores.registry import make_store
from antiphon.tools.mcp.mcp import Mcp
from antiphon.tools.mcp.settings import settings_of
from antiphon.transport import server, workers
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
from antiphon.transport.metering import Metering
from antiphon.transport.openapi import Docs
from antiphon.transport.relays import RelaysEndpoint
from antiphon.transport.responses import ResponsesEndpoint
from antiphon.transport.retold import Manner, manner
from antiphon.transport.standard_headers import StandardHeaders
from antiphon.transport.stored import StoredEndpoint
from antiphon.transport.system import System
from antiphon.transport.tokens import TokensEndpoint
from antiphon.transport.tool_outputs import ToolOutputsEndpoint
from antiphon.transport.traces import TracesEndpoint
from antiphon.transport.watching import Watching
from antiphon.transport.websocket.endpoint import ConnectionBounds, WebSocketEndpoint
from antiphon.transport.websocket.responding import Responding
from antiphon.transport.websocket.socket import SocketSettings

Announce = Callable[[str, list[str]], None]

_REASONING_KEY = "reasoning_key"  # under which the store has it, if the operator gave none
_LAST_WRITES = 5.0  # seconds for what is still to be written when everything is closed


class Parts(Struct, frozen=True, kw_only=True):
    """What lives as long as the server."""

    observing: Observing
    probe: StoreProbe
    egress: Egress
    store: Store
    keys: Keys
    quotas: Quotas
    sharing: Sharing | None
    pressure: Pressure
    live: LiveLog
    engine: Engine
    models: Models
    past: Past
    meaning: Meaning
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

    def loads(self) -> dict[str, float]:
        """What there is to do just now, under names that load balancers know from vLLM."""
        waiting = self.models.waiting()
        return {"num_requests_running": self.sessions.count() - waiting, "num_requests_waiting": waiting}

    def observed(self) -> Observed:
        return Observed(
            models=self.models,
            sessions=self.sessions,
            keeper=self.keeper,
            jobs=self.jobs,
            pressure=self.pressure,
            quotas=self.quotas,
            sharing=self.sharing,
            egress=self.egress,
            probe=self.probe,
        )

    async def deleted(self, tenant: str, response_id: str) -> None:
        """A response was deleted: nobody here goes on with it."""
        self.past.forget(tenant, response_id)
        self.observing.traces.forget(tenant, response_id)
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
        opened.push_async_callback(parts.observing.close)
        parts.observing.open()
        opened.push_async_callback(parts.store.close)
        await parts.store.open()
        await parts.keys.open()
        if not parts.keyring:
            parts.keyring.add(await parts.store.shared(_REASONING_KEY, new_key()))
        opened.push_async_callback(parts.live.close)
        await parts.live.open(parts.sessions.hear)
        opened.push_async_callback(parts.toolkit.close)
        opened.push_async_callback(parts.engine.close)
        await parts.engine.open()
        self._beating.start(parts.models.attend())
        self._beating.start(parts.keeper.attend())
        self._beating.start(parts.keys.attend())
        self._beating.start(parts.pressure.attend())
        self._beating.start(parts.probe.attend())
        if parts.sharing is not None:
            self._beating.start(parts.sharing.attend(parts.quotas))
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
            self._beating.start(self.parts.meaning.prompts.read_again())

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
    if config.workers == 1:
        _serve(config, announce, progress, again)
        return
    workers.check(config)
    workers.Workers(config, lambda place: _serve(config, place.announce, progress, again, place), announce).run()


def _serve(
    config: Config,
    announce: Announce,
    progress: Progress,
    again: Callable[[], Config] | None,
    place: workers.Place | None = None,
) -> None:
    """By this process, which may be one of several workers."""
    pool = build_pool(config, progress)
    app = build_app(config, pool, worker=None if place is None else place.number)
    life = app.lifecycle
    assert isinstance(life, Lifecycle)  # as build_app makes it
    models = life.parts.models
    if again is not None:
        life.reloading = Reloading(config, again, pool, models, life.parts.keys, life.parts.quotas)

    def tell(address: str) -> None:
        announce(address, [model.id for model in models.models()])

    server.serve(app, config, tell, None if place is None else place.sockets)


def build_app(
    config: Config,
    engine: Engine,
    store: Store | None = None,
    live: LiveLog | None = None,
    egress: Egress | None = None,
    worker: int | None = None,
) -> App:
    """A store, a live log or a way out that is given is used as it is. `worker`: its number, if there are several."""
    check_reading(config)
    metrics = Metrics(version("antiphon"), worker)
    observing = Observing(config, metrics)
    store = observing.store(store or build_store(config))
    live = observing.live(live or build_live(config, store))
    parts = _build_parts(config, engine, observing, store, live, egress or Egress(Policy(config.allow_egress)))
    guard = Guard(config, parts.keys)
    guard.pressure, metering = parts.pressure, Metering(parts.quotas, parts.sharing)
    sockets = _websocket(config, parts, guard, metrics, metering)
    told = manner(config, metering)
    system = System(parts.models, metrics, guard, version("antiphon"), parts.probe)
    routes = [*_api(config, parts, told), *system.routes()]
    documented = [*routes, *Docs(routes, version("antiphon")).routes()]
    if config.websocket == "on":
        documented.append(sockets.route())
    observing.tell_of(parts.observed(), sockets.__len__, sockets.load)
    life, headers = Lifecycle(parts, sockets.rest), StandardHeaders(config, parts.loads)
    app = App(documented, guard, metrics, life, metering, headers, parts.models.turned_away)
    if observing.tracer is not None or observing.access_log is not None:
        app.watching = sockets.watch(Watching(observing.tracer, observing.access_log))
    return app


def build_toolkit(config: Config, egress: Egress, store: Store, outputs: ToolOutputs, keys: Keys) -> Toolkit:
    mcp = Mcp(settings_of(config, lambda: keys.required), egress)
    return Toolkit(mcp, built_in_tools(config, egress), Approvals(store, config.store_ttl), outputs)


def build_store(config: Config) -> Store:
    return make_store(config.store_place, config.store_ttl)


def build_live(config: Config, store: Store) -> LiveLog:
    return live_log(config.live, store, config.background_timeout)


def _build_parts(
    config: Config, engine: Engine, observing: Observing, store: Store, live: LiveLog, egress: Egress
) -> Parts:
    models = Models([engine], naming=naming(config), queue=config.queue)
    past, tally = Past(store), Tally(observing.metrics)
    quotas, sharing = make_quotas(config)
    pressure = Pressure(config.shed, models.crowding, store_folder(config.store_place))
    sessions = Sessions(store, live, session_settings(config), tally.ended, quotas)
    attachments = Attachments(egress, config.limits, config.egress_timeout)
    outputs = ToolOutputs(store, live, sessions.words, tool_output_settings(config), attachments)
    keys = Keys(given_keys(config), store)
    toolkit = build_toolkit(config, egress, store, outputs, keys)
    keyring = Keyring(read_keys(config.reasoning_key))
    meant = meaning(config)
    planner = Planner(models, past, terms(config, meant, observing.watch), attachments, keyring, toolkit)
    keeper = Keeper(store, live, keeping_settings(config, store, quotas), past.remember)
    following = Following(store, live, sessions)
    jobs = Jobs(keeper, planner, sessions, following, job_settings(config), pressure=pressure)
    exchanges, counting = Exchanges(planner, sessions, tally), Counting(planner, config.queue)
    doing = Doing(models, config.run_timeout)
    return Parts(
        observing=observing,
        probe=StoreProbe(store),
        egress=egress,
        store=store,
        keys=keys,
        quotas=quotas,
        sharing=sharing,
        pressure=pressure,
        live=live,
        engine=engine,
        models=models,
        past=past,
        meaning=meant,
        keyring=keyring,
        keeper=keeper,
        sessions=sessions,
        following=following,
        jobs=jobs,
        responses=Responses(planner, keeper, sessions, following, jobs, tally, pressure),
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


def _api(config: Config, parts: Parts, told: Manner | None) -> list[Route]:
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


def _websocket(config: Config, parts: Parts, guard: Guard, metrics: Metrics, metering: Metering) -> WebSocketEndpoint:
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
