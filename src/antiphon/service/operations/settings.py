"""Conversion of the configuration to the settings of the service's parts."""

from antiphon.agent.timeouts import Timeouts
from antiphon.agent.tool_loop import ToolLoopLimits
from antiphon.config import Config
from antiphon.config.areas import StorageSettings, ToolSettings
from antiphon.service.access.rate_limits import RateLimits
from antiphon.service.model_io.served_model import OutputTokenLimits
from antiphon.service.persistence.retention import RetentionSettings
from antiphon.service.planning.planner import PlannerSettings, TracerFactory
from antiphon.service.planning.request_policy import RequestPolicy
from antiphon.service.runs.background import BackgroundSettings
from antiphon.service.runs.detached_runs import DetachedRunSettings
from antiphon.service.tool_loop.tool_outputs import ToolOutputSettings
from antiphon.stores.base import RetentionBounds, Store

_MEMORY_STORE = "memory"
_MAX_BYTES = 10 * 1024**3
_MAX_BYTES_IN_MEMORY = 512 * 1024**2


def tool_output_settings(tools: ToolSettings) -> ToolOutputSettings:
    return ToolOutputSettings(timeout=tools.tool_output_timeout, always=tools.wait_for_tool_outputs)


def planner_settings(
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


def retention_settings(storage: StorageSettings, store: Store, rate_limits: RateLimits) -> RetentionSettings:
    max_bytes = storage.store_max_bytes or (_MAX_BYTES_IN_MEMORY if store.name == _MEMORY_STORE else _MAX_BYTES)
    return RetentionSettings(
        lease=storage.lease_seconds,
        ttl=storage.store_ttl,
        background_limit=storage.background_queue,
        background_limit_of=rate_limits.get_background_limit,
        tenant_bytes=rate_limits.get_store_bytes,
        background_timeout=storage.background_timeout,
        bounds=RetentionBounds(
            entries=storage.store_max_entries,
            bytes=max_bytes,
            conversations=storage.conversation_max_entries,
        ),
    )


def detached_run_settings(storage: StorageSettings) -> DetachedRunSettings:
    return DetachedRunSettings(
        max_runs=storage.max_active_sessions,
        keep_streams=storage.keep_streams,
        lease=storage.lease_seconds,
    )


def background_settings(storage: StorageSettings) -> BackgroundSettings:
    return BackgroundSettings(
        slots=storage.background_slots,
        attempts=storage.background_attempts,
        lease=storage.lease_seconds,
    )
