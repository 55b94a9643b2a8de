"""The only file that knows everyone: Config → engine, store → service → app.

An engine's settings are filled from Config by name: `rate` of the fake engine is `fake_rate`, `context` is `context`.
What Config leaves open (None) is the engine's to decide.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib import import_module
from importlib.metadata import version
from typing import Any, get_args, get_type_hints

from msgspec import Struct

from antiphon.agent.patience import Deadlines
from antiphon.config import Config
from antiphon.engines.base import Engine
from antiphon.engines.registry import ENGINES
from antiphon.errors import StartupError
from antiphon.observe import Metrics, set_up_logging
from antiphon.service.conversations import Conversations
from antiphon.service.following import Following
from antiphon.service.jobs import Jobs, JobSettings
from antiphon.service.keeping import Keeper, Keeping
from antiphon.service.models import Models
from antiphon.service.past import Past
from antiphon.service.planner import Planner, Terms
from antiphon.service.prepare import OutputTokens
from antiphon.service.responses import Responses
from antiphon.service.sessions import Sessions, SessionSettings
from antiphon.service.stored import Stored
from antiphon.service.tally import Tally
from antiphon.service.tasks import Tasks
from antiphon.stores.base import Bounds, Store
from antiphon.stores.live.base import LiveLog
from antiphon.stores.live.registry import live_log
from antiphon.stores.registry import make_store
from antiphon.transport import server
from antiphon.transport.app import App
from antiphon.transport.capabilities import CapabilitiesEndpoint
from antiphon.transport.conversations import ConversationsEndpoint
from antiphon.transport.delivery import Delivery
from antiphon.transport.guard import Guard
from antiphon.transport.http import Route
from antiphon.transport.openapi import Docs
from antiphon.transport.responses import ResponsesEndpoint
from antiphon.transport.stored import StoredEndpoint
from antiphon.transport.system import System

Announce = Callable[[str, list[str]], None]
Progress = Callable[[str, int, int], None]  # the task, what is done of it, the whole

_MEMORY = "memory"
_MOST_BYTES = 10 * 1024**3
_MOST_BYTES_IN_MEMORY = 512 * 1024**2
_LAST_WRITES = 5.0  # seconds for what is still to be written when everything is closed


class Parts(Struct, frozen=True, kw_only=True):
    """What lives as long as the server."""

    store: Store
    live: LiveLog
    engine: Engine
    models: Models
    past: Past
    keeper: Keeper
    sessions: Sessions
    following: Following
    jobs: Jobs
    responses: Responses

    async def deleted(self, tenant: str, response_id: str) -> None:
        """A response was deleted: nobody here goes on with it."""
        self.past.forget(tenant, response_id)
        await self.sessions.deleted(tenant, response_id)


class Lifecycle:
    """What is opened before the first request and closed after the last, in the reverse order."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._opened = AsyncExitStack()
        self._beating, self._scanning = Tasks(), Tasks()

    async def open(self) -> None:
        """What is only half open when something goes wrong is closed too."""
        parts, opened = self._parts, self._opened
        opened.push_async_callback(parts.store.close)
        await parts.store.open()
        opened.push_async_callback(parts.live.close)
        await parts.live.open(parts.sessions.hear)
        opened.push_async_callback(parts.engine.close)
        await parts.engine.open()
        self._beating.start(parts.keeper.attend())
        opened.push_async_callback(self._beating.close)
        opened.push_async_callback(parts.keeper.drain, _LAST_WRITES)
        opened.push_async_callback(parts.sessions.close)
        self._scanning.start(parts.jobs.attend())
        opened.push_async_callback(self._scanning.close)

    async def close(self) -> None:
        await self._opened.aclose()

    def busy(self) -> bool:
        return self._parts.sessions.busy()

    def rest(self) -> None:
        self._parts.jobs.rest()

    def interrupt(self) -> None:
        self._parts.responses.interrupt()


def serve(config: Config, announce: Announce, progress: Progress) -> None:
    """Until a signal comes. `announce` is told the address and the models once clients can connect."""
    set_up_logging(config.log_format, config.log_level)
    engine = build_engine(config, progress)

    def tell(address: str) -> None:
        names = [model.id for model in engine.models()]
        announce(address, [*config.served_model_name, *names[1:]] if config.served_model_name else names)

    server.serve(build_app(config, engine), config, tell)


def build_app(config: Config, engine: Engine, store: Store | None = None, live: LiveLog | None = None) -> App:
    """A store or a live log that is given is used as it is."""
    metrics = Metrics(version("antiphon"))
    store = store or build_store(config)
    parts = _build_parts(config, engine, metrics, store, live or build_live(config, store))
    guard = Guard(config)
    routes = [*_api(config, parts), *System(parts.models, metrics, guard, version("antiphon"), store).routes()]
    documented = [*routes, *Docs(routes, version("antiphon")).routes()]
    metrics.watch_engines(lambda: [(engine.name, model.id, engine.healthy()) for model in engine.models()])
    return App(documented, guard, metrics, Lifecycle(parts))


def build_store(config: Config) -> Store:
    return make_store(config.store_place, config.store_ttl)


def build_live(config: Config, store: Store) -> LiveLog:
    return live_log(config.live, store, config.background_timeout)


def _build_parts(config: Config, engine: Engine, metrics: Metrics, store: Store, live: LiveLog) -> Parts:
    models = Models([engine], config.served_model_name, config.accept_any_model, config.queue)
    past, tally = Past(store), Tally(metrics)
    planner = Planner(models, past, _terms(config))
    keeper = Keeper(store, live, _keeping(config, store), past.remember)
    sessions = Sessions(store, live, _session_settings(config), tally.ended)
    following = Following(store, live, sessions)
    jobs = Jobs(keeper, planner, sessions, following, _job_settings(config))
    metrics.watch_queue(running=lambda: sessions.count() - models.waiting(), waiting=models.waiting)
    return Parts(
        store=store,
        live=live,
        engine=engine,
        models=models,
        past=past,
        keeper=keeper,
        sessions=sessions,
        following=following,
        jobs=jobs,
        responses=Responses(planner, keeper, sessions, following, jobs, tally),
    )


def _api(config: Config, parts: Parts) -> list[Route]:
    keeps, delivery = not config.disable_store, Delivery(config.ping_interval)
    stored = Stored(parts.store, parts.deleted, keeps)
    conversations = Conversations(parts.store, parts.past, config.limits, keeps)
    shown = next((model.id for model in parts.models.models()), "MODEL")
    return [
        ResponsesEndpoint(parts.responses, config.limits, delivery).route(shown),
        *StoredEndpoint(stored, parts.following, parts.jobs, delivery).routes(),
        *ConversationsEndpoint(conversations, config.limits).routes(),
        CapabilitiesEndpoint(parts.models).route(),
    ]


def _terms(config: Config) -> Terms:
    return Terms(
        room=OutputTokens(default=config.default_output_tokens, most=config.max_output_tokens),
        deadlines=Deadlines(first=config.first_token_timeout, idle=config.idle_timeout, total=config.run_timeout),
        stores=not config.disable_store,
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


def build_engine(config: Config, progress: Progress | None = None) -> Engine:
    """`progress` hears of fetches and loads, if the engine has any to tell of."""
    named = _engine_name(config)
    place = ENGINES.get(named)
    if place is None:
        *others, last = sorted(ENGINES)
        raise StartupError(f"There is no engine {named!r}; expected {', '.join(others)} or {last}.")
    module, _, name = place.partition(":")
    try:
        kind = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("antiphon"):
            raise
        raise StartupError(f"The {named} engine needs the package {error.name}, which is not installed here.")
    engine = kind(_settings(kind, config))
    if hasattr(engine, "on_progress"):
        engine.on_progress = progress
    built: Engine = engine
    return built


def _engine_name(config: Config) -> str:
    """An engine that runs elsewhere is given as a URL: vllm+https://host is of the engine vllm."""
    scheme, colon, _ = config.engine.partition(":")
    return scheme.partition("+")[0] if colon else config.engine


def _settings(engine: type, config: Config) -> Any:
    hint = get_type_hints(engine.__init__)["settings"]  # type: ignore[misc]  # of the class as registered
    kind = next(iter(get_args(hint)), hint)
    if ":" in config.engine and "engine" not in kind.__struct_fields__:
        raise StartupError(f"The engine {_engine_name(config)} runs here: it is named without an address.")
    found = ((name, _value(config, name)) for name in kind.__struct_fields__)
    return kind(**{name: value for name, value in found if value is not None})


def _value(config: Config, name: str) -> Any:
    own = f"{_engine_name(config)}_{name}"
    return getattr(config, own) if hasattr(config, own) else getattr(config, name, None)
