"""The components that live as long as the server: how they are connected, opened and closed."""

from collections.abc import Callable
from contextlib import AsyncExitStack

from antiphon.agent.completion_run import CompletionRun
from antiphon.agent.run import Run
from antiphon.agent.timeouts import Timeouts
from antiphon.agent.tool_loop import ToolLoopLimits
from antiphon.config import Config
from antiphon.config.key_settings import load_configured_keys, read_reasoning_keys
from antiphon.egress import EgressClient
from antiphon.engines.base import Engine
from antiphon.offload import BackgroundTasks
from antiphon.protocol.decoding.part_cache import PartCache
from antiphon.sandbox.factory import make_sandbox
from antiphon.service.access.api_keys import ApiKeys
from antiphon.service.access.load_monitor import LoadMonitor, find_store_folder
from antiphon.service.access.shared_rate_limits import make_rate_limits
from antiphon.service.access.usage import UsageMeter
from antiphon.service.attachments.attachments import Attachments
from antiphon.service.attachments.text_extraction import ExtractionBounds, TextExtractor
from antiphon.service.compact import Compactions
from antiphon.service.completions import Completions
from antiphon.service.containers.code_runner import CodeRunner
from antiphon.service.containers.containers import Containers
from antiphon.service.containers.live_containers import LiveContainers
from antiphon.service.containers.sweeper import ContainerSweeper
from antiphon.service.engine_tasks import EngineTasks
from antiphon.service.files import Files
from antiphon.service.images import make_images
from antiphon.service.keyring import Keyring, new_key
from antiphon.service.model_io.models import Models, make_naming
from antiphon.service.model_io.served_model import OutputTokenLimits
from antiphon.service.operations.feed import ActivityFeed
from antiphon.service.operations.inspection import Inspection
from antiphon.service.operations.observability import Observability
from antiphon.service.operations.reload import SettingsReloader
from antiphon.service.operations.server_status import ServerMonitor
from antiphon.service.persistence.history_loader import HistoryLoader
from antiphon.service.persistence.response_writer import ResponseWriter
from antiphon.service.persistence.store_maintenance import FileSweeper, StoreProbe
from antiphon.service.persistence.stored_images import StoredImages
from antiphon.service.planning.planner import Planner, PlannerSettings, TracerFactory
from antiphon.service.planning.request_policy import RequestPolicy, make_request_policy
from antiphon.service.responses import Responses
from antiphon.service.runs.active_runs import record_run
from antiphon.service.runs.background import BackgroundRuns
from antiphon.service.runs.detached_runs import DetachedRuns
from antiphon.service.skills.skills import Skills
from antiphon.service.tokens import InputTokenCounter, Tokenization
from antiphon.service.tool_loop.approvals import Approvals
from antiphon.service.tool_loop.moderation import Moderator
from antiphon.service.tool_loop.tool_outputs import ToolOutputs
from antiphon.service.tool_loop.toolkit import Toolkit, built_in_tools
from antiphon.service.vector_stores.embedder import Embedder
from antiphon.service.vector_stores.file_indexer import FileIndexer
from antiphon.service.vector_stores.ingestion import Ingestion
from antiphon.service.vector_stores.query_rewriter import QueryRewriter
from antiphon.service.vector_stores.reranker import Reranker
from antiphon.service.vector_stores.search import VectorSearch
from antiphon.service.vector_stores.store_files import StoreFiles
from antiphon.service.vector_stores.vector_stores import VectorStores
from antiphon.stores.base import FileQuota
from antiphon.stores.live.base import LiveLog, SharedLimits
from antiphon.stores.registry import make_contents
from antiphon.stores.sql.store import Store
from antiphon.tools.base import ToolServices
from antiphon.tools.mcp.client import McpClient
from antiphon.tools.mcp.servers import make_mcp_settings
from antiphon.version import VERSION

_REASONING_KEY = "reasoning_key"  # name of the generated key in the store, if none is configured
_DRAIN_SECONDS = 5.0  # seconds for pending writes at shutdown


class ServerComponents:
    """The components that live as long as the server, connected with each other.

    `worker_limits`: rate limits shared with the other workers, if there are any.
    """

    def __init__(
        self,
        config: Config,
        engine: Engine,
        observability: Observability,
        store: Store,
        live: LiveLog,
        egress: EgressClient,
        worker_limits: SharedLimits | None = None,
    ) -> None:
        self.engine = engine
        self.observability = observability
        self.store = store
        self.live = live
        self.egress = egress
        self.parts = PartCache()
        self.probe = StoreProbe(store)
        self.activity_feed = ActivityFeed(store)
        self.contents = make_contents(config.storage.files, config.storage.store_location, store)
        self.file_sweeper = FileSweeper(store, self.contents)
        self.api_keys = ApiKeys(load_configured_keys(config), store)
        self.rate_limits, self.shared_limits = make_rate_limits(config, worker_limits)
        on_wait = observability.metrics.record_queue_time
        self.models = Models(engine, naming=make_naming(config), queue=config.server.queue, on_wait=on_wait)
        store_folder = find_store_folder(config.storage.store_location)
        self.load_monitor = LoadMonitor(config.shed, self.models.get_queue_load, store_folder)
        self.history = HistoryLoader(store)
        self.request_policy = make_request_policy(config)
        self.keyring = Keyring(read_reasoning_keys(config.inference.reasoning_key))
        self._build_runs(config)

    def _on_run_end(self, run: Run | CompletionRun) -> None:
        record_run(self.observability.metrics, self.usage, run)
        self.activity_feed.record_unstored(run)

    def _build_runs(self, config: Config) -> None:
        """Build what plans, runs and stores responses."""
        store, live, queue = self.store, self.live, config.server.queue
        self.usage = UsageMeter(store)
        storage = config.storage
        quota = FileQuota(storage.files_max_entries, storage.files_max_bytes)
        self.files = Files(store, self.contents, quota, not storage.disable_store)
        self.skills = Skills(store, self.files, FileQuota(storage.skills_max_entries, storage.files_max_bytes))
        self.images = make_images(config, self.egress)
        self.engine_tasks = EngineTasks(self.models, config.inference.run_timeout)
        self._build_vector_search(config)
        self._build_containers(config)
        self.stored_images = stored_images = StoredImages(store, self.contents)
        self.attachments = attachments = Attachments(
            self.egress, config.limits, config.tools.egress_timeout, self.files.load, stored_images.load
        )
        self.detached_runs = runs = DetachedRuns(
            store, live, config.storage, self._on_run_end, self.rate_limits, stored_images
        )
        self.models.on_queued = runs.unread.make_room
        self.tool_outputs = ToolOutputs(store, live, runs.notifications, config.tools, attachments)
        self.toolkit = self._build_toolkit(config)
        settings = _planner_settings(config, self.request_policy, self.observability.tracer_factory)
        planner = Planner(self.models, self.history, settings, attachments, self.keyring, self.toolkit)
        if (name := config.inference.moderation_model) is not None:
            seconds, relay = config.inference.moderation_timeout, self.engine_tasks.relay_json
            planner.moderator = Moderator(name, seconds, self.models, planner, relay, attachments.load)
        self.moderator = planner.moderator
        self.monitor = ServerMonitor(
            VERSION, self.models, runs, self.observability.metrics, self.load_monitor, self.probe
        )
        self.writer = ResponseWriter(
            store, live, config.storage, self.history.remember, self.rate_limits, stored_images
        )
        self.writer.note_write = self.observability.note_write
        self.background_runs = BackgroundRuns(self.writer, planner, runs, load=self.load_monitor)
        self.responses = Responses(planner, self.writer, runs, self.background_runs, self.load_monitor)
        self.input_token_counter = InputTokenCounter(planner, queue)
        self.completions = Completions(self.models, planner, runs, self.input_token_counter)
        self.compactions = Compactions(planner, self.completions, self.keyring)
        self.tokenization = Tokenization(self.engine_tasks, planner, queue)
        self.inspection = Inspection(store, planner, self.observability.traces, queue, not storage.disable_store)
        rewriter = QueryRewriter(self.engine_tasks, planner, self.completions, config.vectors.rewrite_model)
        self.vector_stores = VectorStores(
            store, self.vector_search, rewriter, self.ingestion, config.vectors, not storage.disable_store
        )

    def _build_toolkit(self, config: Config) -> Toolkit:
        mcp = McpClient(make_mcp_settings(config, lambda: self.api_keys.required), self.egress)
        approvals = Approvals(self.store, config.storage.store_ttl)
        search = None if config.storage.disable_store else self.vector_search
        runner = self.code_runner if self.live_containers.is_enabled else None
        services = ToolServices(
            config=config,
            egress=self.egress,
            search=search,
            containers=runner,
            images=self.images or None,
            load_images=self.attachments.load_images,
        )
        approves_code, has_computer = config.tools.code_require_approval == "always", config.tools.enable_computer_call
        return Toolkit(mcp, built_in_tools(services), approvals, self.tool_outputs, approves_code, runner, has_computer)

    def _build_vector_search(self, config: Config) -> None:
        embedder = Embedder(self.engine_tasks, config.vectors.embedding_model)
        indexer = FileIndexer(self.store, self.files, TextExtractor(ExtractionBounds()), embedder)
        self.ingestion = Ingestion(self.store, indexer, config.vectors, config.storage)
        rerank_model, index_bytes = config.vectors.rerank_model, config.vectors.vector_index_bytes
        self.reranker = None if rerank_model is None else Reranker(self.engine_tasks, rerank_model)
        self.vector_search = VectorSearch(self.store, embedder, index_bytes, self.reranker)
        self.store_files = StoreFiles(self.store, self.ingestion, config.vectors)

    def _build_containers(self, config: Config) -> None:
        self.sandbox = make_sandbox(config)
        store_enabled = not config.storage.disable_store
        self.live_containers = LiveContainers(
            self.store, self.files, self.sandbox, config.tools, self.egress, store_enabled
        )
        self.container_sweeper = ContainerSweeper(self.live_containers)
        self.containers = Containers(self.live_containers)
        self.code_runner = CodeRunner(self.live_containers)

    def loads(self) -> dict[str, float]:
        """Return the current load, under the metric names of vLLM that load balancers use."""
        waiting = self.models.count_waiting()
        return {"num_requests_running": len(self.detached_runs.slots) - waiting, "num_requests_waiting": waiting}

    async def forget_response(self, tenant: str, response_id: str) -> None:
        """Drop all state of a deleted response: cached history, traces, and its run."""
        self.history.forget(tenant, response_id)
        self.observability.traces.forget(tenant, response_id)
        await self.detached_runs.notify_servers(response_id)


class ServerLifecycle:
    """Opens the components before the first request and closes them in reverse order after the last one."""

    def __init__(self, components: ServerComponents, on_drain: Callable[[], None]) -> None:
        """`on_drain` is called when the server stops accepting requests."""
        self.components = components
        self._on_drain = on_drain
        self.reloader: SettingsReloader | None = None  # None: the settings cannot be reloaded
        self._exit_stack = AsyncExitStack()
        self._maintenance, self._queue_tasks = BackgroundTasks(), BackgroundTasks()

    async def open(self) -> None:
        """Open all components. After a failure, `close` also closes those that are only partly open."""
        components, exit_stack = self.components, self._exit_stack
        exit_stack.push_async_callback(components.observability.close)
        components.observability.open()
        exit_stack.push_async_callback(components.store.close)
        await components.store.open()
        exit_stack.push_async_callback(components.usage.flush)
        exit_stack.push_async_callback(components.activity_feed.close)
        await components.contents.open()
        await components.api_keys.open()
        if not components.keyring:
            components.keyring.add(await components.store.shared(_REASONING_KEY, new_key()))
        exit_stack.push_async_callback(components.live.close)
        await components.live.open(components.detached_runs.on_notification)
        exit_stack.push_async_callback(components.sandbox.close)
        exit_stack.push_async_callback(components.toolkit.close)
        exit_stack.push_async_callback(components.images.close)
        exit_stack.push_async_callback(components.engine.close)
        await components.engine.open()
        maintained = (
            components.models,
            components.writer,
            components.api_keys,
            components.load_monitor,
            components.probe,
            components.file_sweeper,
            components.ingestion,
            components.container_sweeper,
            components.images,
            components.monitor,
            components.usage,
        )
        for one in maintained:
            self._maintenance.start(one.run_forever())
        if components.shared_limits is not None:
            self._maintenance.start(components.shared_limits.run_forever(components.rate_limits))
        if (worker_metrics := components.observability.metrics.worker_metrics) is not None:
            self._maintenance.start(worker_metrics.publish_periodically())
        exit_stack.push_async_callback(self._maintenance.close)
        exit_stack.push_async_callback(components.writer.drain, _DRAIN_SECONDS)
        exit_stack.push_async_callback(components.detached_runs.close)
        self._queue_tasks.start(components.background_runs.run_queue())
        exit_stack.push_async_callback(self._queue_tasks.close)

    async def close(self) -> None:
        await self._exit_stack.aclose()

    def is_busy(self) -> bool:
        return self.components.detached_runs.is_busy()

    def reload(self) -> None:
        if self.reloader is not None:
            self._maintenance.start(self.reloader.reload())
            self._maintenance.start(self.components.request_policy.prompts.reload())

    def drain(self) -> None:
        self.components.background_runs.stop_claiming()
        self.components.activity_feed.shut()
        self._on_drain()

    def interrupt(self) -> None:
        self.components.detached_runs.interrupt()


def _planner_settings(
    config: Config, policy: RequestPolicy, make_tracer: TracerFactory | None = None
) -> PlannerSettings:
    inference, tools = config.inference, config.tools
    return PlannerSettings(
        output_limits=OutputTokenLimits(default=inference.default_output_tokens, maximum=inference.max_output_tokens),
        timeouts=Timeouts(
            first=inference.first_token_timeout, idle=inference.idle_timeout, total=inference.run_timeout
        ),
        store_enabled=not config.storage.disable_store,
        output_retries=inference.insist,
        loop_limits=ToolLoopLimits(max_turns=tools.max_turns, max_parallel=tools.tools_at_once),
        policy=policy,
        make_tracer=make_tracer,
        unserved_tools=tools.unserved_tools,
        cache_key_use=config.compatibility.prompt_cache_key,
        reasoning_summaries=inference.reasoning_summaries,
    )
