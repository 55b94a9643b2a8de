"""From the settings to what single parts of the service are told by the operator."""

from antiphon.agent.timeouts import Deadlines
from antiphon.agent.tool_loop import Bounds as LoopBounds
from antiphon.config import Config
from antiphon.service.access.rate_limits import Quotas
from antiphon.service.model_io.models import OutputTokens
from antiphon.service.persistence.response_writer import Keeping
from antiphon.service.planning.planner import Terms, Watch
from antiphon.service.planning.request_policy import Meaning
from antiphon.service.runs.background import JobSettings
from antiphon.service.runs.detached_runs import SessionSettings
from antiphon.service.tool_loop.tool_outputs import ToolOutputSettings
from antiphon.stores.base import Bounds, Store

_MEMORY = "memory"
_MOST_BYTES = 10 * 1024**3
_MOST_BYTES_IN_MEMORY = 512 * 1024**2


def tool_output_settings(config: Config) -> ToolOutputSettings:
    return ToolOutputSettings(timeout=config.tool_output_timeout, always=config.wait_for_tool_outputs)


def terms(config: Config, meant: Meaning, watch: Watch | None = None) -> Terms:
    return Terms(
        room=OutputTokens(default=config.default_output_tokens, most=config.max_output_tokens),
        deadlines=Deadlines(first=config.first_token_timeout, idle=config.idle_timeout, total=config.run_timeout),
        stores=not config.disable_store,
        insists=config.insist,
        bounds=LoopBounds(turns=config.max_turns, at_once=config.tools_at_once),
        meaning=meant,
        watch=watch,
    )


def keeping_settings(config: Config, store: Store, quotas: Quotas) -> Keeping:
    most_bytes = config.store_max_bytes or (_MOST_BYTES_IN_MEMORY if store.name == _MEMORY else _MOST_BYTES)
    return Keeping(
        lease=config.lease_seconds,
        ttl=config.store_ttl,
        background_room=config.background_queue,
        room_of=quotas.background_room,
        own_bytes=quotas.store_bytes,
        background_timeout=config.background_timeout,
        bounds=Bounds(
            entries=config.store_max_entries, bytes=most_bytes, conversations=config.conversation_max_entries
        ),
    )


def session_settings(config: Config) -> SessionSettings:
    return SessionSettings(
        most=config.max_active_sessions, keep_streams=config.keep_streams, lease=config.lease_seconds
    )


def job_settings(config: Config) -> JobSettings:
    return JobSettings(slots=config.background_slots, attempts=config.background_attempts, lease=config.lease_seconds)
