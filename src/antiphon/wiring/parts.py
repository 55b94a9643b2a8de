"""What lives as long as the server, and how its parts are put together: the one place where they meet."""

from msgspec import Struct

from antiphon.config import Config
from antiphon.config.key_settings import given_keys, read_keys
from antiphon.egress import Egress
from antiphon.engines.base import Engine
from antiphon.service.approvals import Approvals
from antiphon.service.attachments import Attachments
from antiphon.service.chat import Chat
from antiphon.service.compactions import Compactions
from antiphon.service.completions import Completions
from antiphon.service.counting import Counting
from antiphon.service.doing import Doing
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
from antiphon.service.responses import Responses
from antiphon.service.sealing import Keyring
from antiphon.service.sessions import Sessions
from antiphon.service.settings import job_settings, keeping_settings, session_settings, terms, tool_output_settings
from antiphon.service.tally import Tally
from antiphon.service.tokens import Tokens
from antiphon.service.tool_outputs import ToolOutputs
from antiphon.service.toolkit import Toolkit, built_in_tools
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
