"""What the operator decides about MCP. Every wait and every size has a bound here."""

from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import Struct

from antiphon.config import Config
from antiphon.config.mcp import McpServerSpec
from antiphon.limits import Limits

_MIB = 1024 * 1024


def _never() -> bool:
    return False


class McpSettings(Struct, frozen=True, kw_only=True):
    servers: Mapping[str, McpServerSpec] = {}  # by their labels
    require_approval: Literal["never", "always"] = "never"
    at_home: bool = False  # a server_url may name loopback,
    keyed: Callable[[], bool] = _never  # until there are keys

    list_seconds: float = 30.0  # to connect and to list
    call_seconds: float = 60.0  # without a sign of life; progress is one
    longest_seconds: float = 600.0  # of a call, however lively
    check_seconds: float = 30.0  # unused for as long, a session is asked whether it still is one
    session_idle_seconds: float = 300.0
    list_ttl_seconds: float = 300.0

    tools: int = 512  # of one server
    list_bytes: int = 4 * _MIB
    answer_bytes: int = 8 * _MIB  # of one call, all that comes
    output_bytes: int = _MIB  # of what a call says; the rest is cut off
    sessions: int = 512
    tenant_sessions: int = 64
    calls_at_once: int = 16  # in one session
    limits: Limits = Limits()

    @property
    def loopback(self) -> bool:
        """May a server_url name it? One person's machine can become one for many while it runs."""
        return self.at_home and not self.keyed()


def settings_of(config: Config, keyed: Callable[[], bool] = _never) -> McpSettings:
    return McpSettings(
        servers=config.mcp_servers,
        require_approval=config.mcp_require_approval,
        at_home=config.at_home,
        keyed=keyed,
        list_seconds=config.tool_list_timeout,
        call_seconds=config.tool_timeout,
        longest_seconds=10 * config.tool_timeout,
        tools=config.limits.mcp_tools,
        output_bytes=config.limits.tool_output_bytes,
        limits=config.limits,
    )
