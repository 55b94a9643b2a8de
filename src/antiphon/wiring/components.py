"""The components that live as long as the server, and how they are connected."""

from functools import partial

from msgspec import Struct, field

from antiphon.agent.timeouts import Timeouts
from antiphon.agent.tool_loop import ToolLoopLimits
from antiphon.config import Config
from antiphon.config.key_settings import load_configured_keys, read_reasoning_keys
from antiphon.egress import EgressClient
from antiphon.engines.base import Engine
from antiphon.protocol.decoding.part_cache import PartCache
from antiphon.service.access.api_keys import ApiKeys
from antiphon.service.access.load_monitor import LoadMonitor, find_store_folder
from antiphon.service.access.rate_limits import RateLimits
from antiphon.service.access.shared_rate_limits import SharedRateLimits, make_rate_limits
from antiphon.service.attachments.attachments import Attachments
from antiphon.service.compact import Compactions
from antiphon.service.completions import Completions
from antiphon.service.engine_tasks import EngineTasks
from antiphon.service.keyring import Keyring
from antiphon.service.model_io.models import Models, make_naming
from antiphon.service.model_io.served_model import OutputTokenLimits
from antiphon.service.operations.observability import Observability
from antiphon.service.operations.observability import ServerParts as Observed
from antiphon.service.persistence.history_loader import HistoryLoader
from antiphon.service.persistence.response_writer import ResponseWriter
from antiphon.service.persistence.store_maintenance import StoreProbe
from antiphon.service.planning.planner import Planner, PlannerSettings, TracerFactory
from antiphon.service.planning.request_policy import RequestPolicy, make_request_policy
from antiphon.service.responses import Responses
from antiphon.service.runs.active_runs import record_run
from antiphon.service.runs.background import BackgroundRuns
from antiphon.service.runs.detached_runs import DetachedRuns
from antiphon.service.tokens import InputTokenCounter, Tokenization
from antiphon.service.tool_loop.approvals import Approvals
from antiphon.service.tool_loop.tool_outputs import ToolOutputs
from antiphon.service.tool_loop.toolkit import Toolkit, built_in_tools
from antiphon.stores.base import Store
from antiphon.stores.live.base import LiveLog, SharedLimits
from antiphon.stores.registry import make_live_log, make_store
from antiphon.tools.mcp.client import McpClient
from antiphon.tools.mcp.servers import make_mcp_settings


class Infrastructure(Struct, frozen=True, kw_only=True):
    """The infrastructure that the components of a server are built on."""

    engine: Engine
    observability: Observability
    store: Store
    live: LiveLog
    egress: EgressClient
    shared_limits: SharedLimits | None = None  # rate limits shared with the other workers, if there are any


class ServerComponents(Struct, frozen=True, kw_only=True):
    """The components that live as long as the server."""

    observability: Observability
    probe: StoreProbe
    egress: EgressClient
    store: Store
    api_keys: ApiKeys
    rate_limits: RateLimits
    shared_limits: SharedRateLimits | None
    load_monitor: LoadMonitor
    live: LiveLog
    engine: Engine
    models: Models
    history: HistoryLoader
    request_policy: RequestPolicy
    keyring: Keyring
    writer: ResponseWriter
    detached_runs: DetachedRuns
    background_runs: BackgroundRuns
    responses: Responses
    input_token_counter: InputTokenCounter
    compactions: Compactions
    completions: Completions
    engine_tasks: EngineTasks
    tokenization: Tokenization
    tool_outputs: ToolOutputs
    toolkit: Toolkit
    parts: PartCache = field(default_factory=PartCache)

    def loads(self) -> dict[str, float]:
        """Return the current load, under the metric names of vLLM that load balancers use."""
        waiting = self.models.count_waiting()
        return {"num_requests_running": self.detached_runs.count_runs() - waiting, "num_requests_waiting": waiting}

    def metric_sources(self) -> Observed:
        """Return the components that provide metrics."""
        return Observed(
            models=self.models,
            detached_runs=self.detached_runs,
            writer=self.writer,
            background=self.background_runs,
            load_monitor=self.load_monitor,
            rate_limits=self.rate_limits,
            shared_limits=self.shared_limits,
            egress=self.egress,
            probe=self.probe,
        )

    async def forget_response(self, tenant: str, response_id: str) -> None:
        """Drop all state of a deleted response: cached history, traces, and its run."""
        self.history.forget(tenant, response_id)
        self.observability.traces.forget(tenant, response_id)
        await self.detached_runs.notify_servers(response_id)


def build_store(config: Config) -> Store:
    return make_store(config.storage.store_location, config.storage.store_ttl)


def build_live(config: Config, store: Store) -> LiveLog:
    return make_live_log(config.storage.live, store, config.storage.background_timeout)


def build_components(config: Config, infrastructure: Infrastructure) -> ServerComponents:
    """Build all components and connect them."""
    observability, store = infrastructure.observability, infrastructure.store
    live, egress = infrastructure.live, infrastructure.egress
    on_wait = observability.metrics.record_queue_time
    models = Models([infrastructure.engine], naming=make_naming(config), queue=config.server.queue, on_wait=on_wait)
    history, on_end = HistoryLoader(store), partial(record_run, observability.metrics)
    rate_limits, shared_limits = make_rate_limits(config, infrastructure.shared_limits)
    load_monitor = LoadMonitor(config.shed, models.get_queue_load, find_store_folder(config.storage.store_location))
    detached_runs = DetachedRuns(store, live, config.storage, on_end, rate_limits)
    attachments = Attachments(egress, config.limits, config.tools.egress_timeout)
    outputs = ToolOutputs(store, live, detached_runs.notifications, config.tools, attachments)
    api_keys = ApiKeys(load_configured_keys(config), store)
    toolkit = _build_toolkit(config, egress, store, outputs, api_keys)
    keyring = Keyring(read_reasoning_keys(config.inference.reasoning_key))
    request_policy = make_request_policy(config)
    settings = _planner_settings(config, request_policy, observability.tracer_factory)
    planner = Planner(models, history, settings, attachments, keyring, toolkit)
    writer = ResponseWriter(store, live, config.storage, history.remember, rate_limits)
    background_runs = BackgroundRuns(writer, planner, detached_runs, load=load_monitor)
    token_counter = InputTokenCounter(planner, config.server.queue)
    completions = Completions(models, planner, detached_runs, token_counter)
    engine_tasks = EngineTasks(models, config.inference.run_timeout)
    return ServerComponents(
        observability=observability,
        probe=StoreProbe(store),
        egress=egress,
        store=store,
        api_keys=api_keys,
        rate_limits=rate_limits,
        shared_limits=shared_limits,
        load_monitor=load_monitor,
        live=live,
        engine=infrastructure.engine,
        models=models,
        history=history,
        request_policy=request_policy,
        keyring=keyring,
        writer=writer,
        detached_runs=detached_runs,
        background_runs=background_runs,
        responses=Responses(planner, writer, detached_runs, background_runs, load_monitor),
        input_token_counter=token_counter,
        compactions=Compactions(planner, completions, keyring),
        completions=completions,
        engine_tasks=engine_tasks,
        tokenization=Tokenization(engine_tasks, planner, config.server.queue),
        tool_outputs=outputs,
        toolkit=toolkit,
    )


def _planner_settings(
    config: Config, policy: RequestPolicy, make_tracer: TracerFactory | None = None
) -> PlannerSettings:
    inference, tools = config.inference, config.tools
    return PlannerSettings(
        output_limits=OutputTokenLimits(default=inference.default_output_tokens, maximum=inference.max_output_tokens),
        timeouts=Timeouts(
            first=inference.first_token_timeout,
            idle=inference.idle_timeout,
            total=inference.run_timeout,
        ),
        store_enabled=not config.storage.disable_store,
        output_retries=inference.insist,
        loop_limits=ToolLoopLimits(max_turns=tools.max_turns, max_parallel=tools.tools_at_once),
        policy=policy,
        make_tracer=make_tracer,
    )


def _build_toolkit(
    config: Config, egress: EgressClient, store: Store, outputs: ToolOutputs, api_keys: ApiKeys
) -> Toolkit:
    mcp = McpClient(make_mcp_settings(config, lambda: api_keys.required), egress)
    return Toolkit(mcp, built_in_tools(config, egress), Approvals(store, config.storage.store_ttl), outputs)
