"""Conversion of the configuration to the settings of the service's parts."""

from antiphon.agent.timeouts import Timeouts
from antiphon.agent.tool_loop import ToolLoopLimits
from antiphon.config import Config
from antiphon.service.access.rate_limits import RateLimits
from antiphon.service.model_io.models import OutputTokenLimits
from antiphon.service.persistence.response_writer import RetentionSettings
from antiphon.service.planning.planner import PlannerSettings, TracerFactory
from antiphon.service.planning.request_policy import RequestPolicy
from antiphon.service.runs.background import BackgroundSettings
from antiphon.service.runs.detached_runs import DetachedRunSettings
from antiphon.service.tool_loop.tool_outputs import ToolOutputSettings
from antiphon.stores.base import RetentionBounds, Store

_MEMORY_STORE = "memory"
_MAX_BYTES = 10 * 1024**3
_MAX_BYTES_IN_MEMORY = 512 * 1024**2


def tool_output_settings(config: Config) -> ToolOutputSettings:
    return ToolOutputSettings(timeout=config.tool_output_timeout, always=config.wait_for_tool_outputs)


def planner_settings(
    config: Config, policy: RequestPolicy, make_tracer: TracerFactory | None = None
) -> PlannerSettings:
    return PlannerSettings(
        output_limits=OutputTokenLimits(default=config.default_output_tokens, maximum=config.max_output_tokens),
        timeouts=Timeouts(first=config.first_token_timeout, idle=config.idle_timeout, total=config.run_timeout),
        store_enabled=not config.disable_store,
        output_retries=config.insist,
        loop_limits=ToolLoopLimits(max_turns=config.max_turns, max_parallel=config.tools_at_once),
        policy=policy,
        make_tracer=make_tracer,
    )


def retention_settings(config: Config, store: Store, rate_limits: RateLimits) -> RetentionSettings:
    max_bytes = config.store_max_bytes or (_MAX_BYTES_IN_MEMORY if store.name == _MEMORY_STORE else _MAX_BYTES)
    return RetentionSettings(
        lease=config.lease_seconds,
        ttl=config.store_ttl,
        background_limit=config.background_queue,
        background_limit_of=rate_limits.get_background_limit,
        tenant_bytes=rate_limits.get_store_bytes,
        background_timeout=config.background_timeout,
        bounds=RetentionBounds(
            entries=config.store_max_entries, bytes=max_bytes, conversations=config.conversation_max_entries
        ),
    )


def detached_run_settings(config: Config) -> DetachedRunSettings:
    return DetachedRunSettings(
        max_runs=config.max_active_sessions, keep_streams=config.keep_streams, lease=config.lease_seconds
    )


def background_settings(config: Config) -> BackgroundSettings:
    return BackgroundSettings(
        slots=config.background_slots, attempts=config.background_attempts, lease=config.lease_seconds
    )
