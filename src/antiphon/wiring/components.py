"""What lives as long as the server, and how its parts are put together: the one place where they meet."""

from msgspec import Struct

from antiphon.config import Config
from antiphon.config.key_settings import given_keys, read_keys
from antiphon.egress import Egress
from antiphon.engines.base import Engine
from antiphon.service.access.api_keys import Keys
from antiphon.service.access.load_monitor import Pressure, store_folder
from antiphon.service.access.rate_limits import Quotas
from antiphon.service.access.shared_rate_limits import Sharing, make_quotas
from antiphon.service.anthropic import Messages
from antiphon.service.attachments.attachments import Attachments
from antiphon.service.chat import Chat
from antiphon.service.compact import Compactions
from antiphon.service.completions import Completions
from antiphon.service.encryption.keyring import Keyring
from antiphon.service.engine_tasks import Doing
from antiphon.service.model_io.models import Models, naming
from antiphon.service.operations.observability import Observing
from antiphon.service.operations.observability import Parts as Observed
from antiphon.service.operations.settings import (
    job_settings,
    keeping_settings,
    session_settings,
    terms,
    tool_output_settings,
)
from antiphon.service.persistence.history_loader import Past
from antiphon.service.persistence.response_writer import Keeper
from antiphon.service.persistence.store_health import StoreProbe
from antiphon.service.planning.planner import Planner
from antiphon.service.planning.request_policy import Meaning, meaning
from antiphon.service.responses import Responses
from antiphon.service.runs.accounting import Tally
from antiphon.service.runs.background import Jobs
from antiphon.service.runs.completion_runs import Exchanges
from antiphon.service.runs.detached_runs import Sessions
from antiphon.service.runs.follow import Following
from antiphon.service.tokens import Counting, Tokens
from antiphon.service.tool_loop.approvals import Approvals
from antiphon.service.tool_loop.tool_outputs import ToolOutputs
from antiphon.service.tool_loop.toolkit import Toolkit, built_in_tools
from antiphon.stores.base import Store
from antiphon.stores.live.base import LiveLog, Till
from antiphon.stores.live.registry import live_log
from antiphon.stores.registry import make_store
from antiphon.tools.mcp.client import Mcp
from antiphon.tools.mcp.settings import settings_of


class Ground(Struct, frozen=True, kw_only=True):
    """What the parts of a server stand on."""

    engine: Engine
    observing: Observing
    store: Store
    live: LiveLog
    egress: Egress
    till: Till | None = None  # what its workers share, if it is one of several


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


def build_store(config: Config) -> Store:
    return make_store(config.store_place, config.store_ttl)


def build_live(config: Config, store: Store) -> LiveLog:
    return live_log(config.live, store, config.background_timeout)


def build_parts(config: Config, ground: Ground) -> Parts:
    observing, store, live, egress = ground.observing, ground.store, ground.live, ground.egress
    models = Models([ground.engine], naming=naming(config), queue=config.queue, waited=observing.metrics.waited)
    past, tally = Past(store), Tally(observing.metrics)
    quotas, sharing = make_quotas(config, ground.till)
    pressure = Pressure(config.shed, models.crowding, store_folder(config.store_place))
    sessions = Sessions(store, live, session_settings(config), tally.ended, quotas)
    attachments = Attachments(egress, config.limits, config.egress_timeout)
    outputs = ToolOutputs(store, live, sessions.words, tool_output_settings(config), attachments)
    keys = Keys(given_keys(config), store)
    toolkit = _toolkit(config, egress, store, outputs, keys)
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
        engine=ground.engine,
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


def _toolkit(config: Config, egress: Egress, store: Store, outputs: ToolOutputs, keys: Keys) -> Toolkit:
    mcp = Mcp(settings_of(config, lambda: keys.required), egress)
    return Toolkit(mcp, built_in_tools(config, egress), Approvals(store, config.store_ttl), outputs)
