"""The operator's settings for MCP. Every timeout and every size has a limit here."""

from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import Struct

from antiphon.config import Config
from antiphon.config.tool_settings import McpServerSpec
from antiphon.limits import Limits

_MIB = 1024 * 1024


def _always_false() -> bool:
    return False


class McpSettings(Struct, frozen=True, kw_only=True):
    """Settings of the MCP client."""

    servers: Mapping[str, McpServerSpec] = {}  # by label
    require_approval: Literal["never", "always"] = "never"
    at_home: bool = False  # a server_url may name a loopback address,
    keyed: Callable[[], bool] = _always_false  # as long as there are no API keys

    list_seconds: float = 30.0  # to connect, and to list tools
    call_seconds: float = 60.0  # without a response or progress
    longest_seconds: float = 600.0  # of a call, regardless of progress
    check_seconds: float = 30.0  # a session that was idle for longer is pinged before a call
    session_idle_seconds: float = 300.0
    list_ttl_seconds: float = 300.0

    tools: int = 512  # per server
    list_bytes: int = 4 * _MIB
    answer_bytes: int = 8 * _MIB  # everything received for one call
    output_bytes: int = _MIB  # output of a call; longer output is truncated
    sessions: int = 512
    tenant_sessions: int = 64
    calls_at_once: int = 16  # per session
    limits: Limits = Limits()

    @property
    def loopback(self) -> bool:
        """Whether a server_url may name a loopback address. Evaluated each time, since keys may be added at run
        time.
        """
        return self.at_home and not self.keyed()


def make_mcp_settings(config: Config, keyed: Callable[[], bool] = _always_false) -> McpSettings:
    return McpSettings(
        servers=config.tools.mcp_servers,
        require_approval=config.tools.mcp_require_approval,
        at_home=config.server.allow_loopback_urls,
        keyed=keyed,
        list_seconds=config.tools.tool_list_timeout,
        call_seconds=config.tools.tool_timeout,
        longest_seconds=10 * config.tools.tool_timeout,
        tools=config.limits.mcp_tools,
        output_bytes=config.limits.tool_output_bytes,
        limits=config.limits,
    )
