"""A tool server, and the session of a response with it.

The session belongs to a container id, as calls name it, along a conversation: so a tool server can keep variables and
files. It has an MCP session of its own, with the header X-Session-Id, which is a digest of the tenant and that id.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, ClassVar, Final

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.errors import InvalidValue, UnsupportedParameter
from antiphon.ids import new_id
from antiphon.protocol.types.items import InputItem, OutputItem
from antiphon.protocol.types.tools import AutoContainer, Credentials, FunctionTool, McpTool
from antiphon.protocol.types.tools import Tool as Declaration
from antiphon.tools.base import ResponseTool, ToolServices
from antiphon.tools.code_interpreter.response_container import ContainerTool, ToolContainer
from antiphon.tools.mcp.client import McpClient
from antiphon.tools.mcp.response_tools import McpTools, render_output
from antiphon.tools.mcp.servers import check_headers, check_program, make_mcp_settings

Json = dict[str, Any]

# The functions of the tools of gpt-oss, which a tool server has under these names.
SERVER_FUNCTIONS: Final = {"python": ("python",), "browser": ("search", "open", "find"), "container": ("exec",)}
SESSION_HEADER: Final = "x-session-id"
_CONTAINER_FIELDS: Final = ("file_ids", "memory_limit", "network_policy", "skills")
_OTHER_FIELDS: Final = ("server_description", "require_approval", "defer_loading", "allowed_callers", "allowed_tools")


class ServedTool:
    """A built-in tool that a tool server runs: the common part of the classes that the registry names."""

    kind: str
    types: tuple[type, ...]
    server_name: ClassVar[str]
    labels: ClassVar[frozenset[str]]  # by which requests name the server: its name, and the types of the tool
    missing = ""

    def __init__(self, services: ToolServices) -> None:
        settings = make_mcp_settings(services.config)
        spec = services.config.tools.tool_server_specs[self.server_name]
        # Each response has a session, so a tenant has more of them than with MCP servers.
        settings = replace(settings, servers={spec.label: spec}, tenant_sessions=settings.sessions // 2)
        self._client = McpClient(settings, services.egress)
        self._description = spec.description
        self._limits = settings.limits
        self.settings = settings

    def describe(self, functions: tuple[FunctionTool, ...], default: str) -> tuple[FunctionTool, ...]:
        """Return the functions, of which the first has the operator's description, or else the default one."""
        described = [replace(one, description=self._description or default) for one in functions[:1]]
        return (*described, *functions[1:])

    def open(self, tenant: str, session_id: str, credentials: Credentials) -> McpTools:
        digest = blake2b(f"{tenant}\0{session_id}".encode(errors="surrogatepass"), digest_size=16).hexdigest()
        declared = McpTool(server_label=self.server_name)
        declared.set_credentials(replace(credentials, headers={**credentials.headers, SESSION_HEADER: digest}))
        return self._client.begin(tenant, [declared])

    def check_credentials(self, declared: McpTool, tools: Iterable[Declaration], param: str) -> None:
        """Check the `mcp` tool that has a client's headers for the server. Raises a BadRequest that names the field."""
        reason = f"The label {declared.server_label!r} names a tool server"
        for field in _OTHER_FIELDS:
            if getattr(declared, field) not in (UNSET, None):
                message = f"{reason}, for which only headers and authorization can be given."
                raise UnsupportedParameter(message, param=f"{param}.{field}")
        check_headers(declared.credentials, param)
        check_program(self.settings.servers[self.server_name], declared.credentials, param)
        if any(name.lower() == SESSION_HEADER for name in declared.credentials.headers):
            raise InvalidValue(f"The header {SESSION_HEADER} is set by this server.", param=f"{param}.headers")
        if not any(isinstance(tool, self.types) for tool in tools):
            raise InvalidValue(f"{reason}, but the tool that it runs is not declared.", param=f"{param}.server_label")

    async def close(self) -> None:
        await self._client.close()


class ServerSession:
    """The session of one response with a tool server. Hold `in_order` for a call: it may use the state of others."""

    def __init__(self, server: ServedTool, tenant: str) -> None:
        super().__init__()
        self.server = server
        self._tenant = tenant
        self._tools: McpTools | None = None
        self.credentials = Credentials()  # of the client
        self.id = ""  # of the container; "" until it is known
        self.in_order = asyncio.Lock()

    @property
    def max_seconds(self) -> float:
        return self.server.settings.longest_seconds

    def use_latest(self, container_ids: Iterable[str]) -> None:
        """Continue the session of the latest call, or else begin a new one."""
        self.id = [self.id or new_id("cntr_auto"), *container_ids][-1]

    async def call(self, name: str, arguments: Json) -> Json:
        """Call a function of the tool server once. Raises McpFailed, within a deadline."""
        if self._tools is None:
            self.use_latest(())
            self._tools = self.server.open(self._tenant, self.id, self.credentials)
        return await self._tools.call_tool(self.server.server_name, name, arguments)

    def render(self, result: Json) -> str:
        return render_output(result, self.server.settings.output_bytes)

    def refuse(self, reason: str, param: str) -> None:
        name = self.server.server_name
        raise UnsupportedParameter(f"The tool server {name!r}, which runs this, {reason}.", param=param)


class ServerContainer(ServerSession, ToolContainer):
    """A session in place of a container. Along a conversation, it is that of the latest call."""

    def __init__(self, server: ServedTool, tenant: str, wanted: str | AutoContainer) -> None:
        super().__init__(server, tenant)
        self._wanted = wanted

    @abstractmethod
    def list_sessions(self, items: Iterable[InputItem]) -> list[str]:
        """Return the container ids of the calls among the items."""

    async def prepare(self, param: str, history: Sequence[InputItem]) -> None:
        """Refuse a declaration that asks for a container, or for one with certain properties."""
        if isinstance(self._wanted, str):
            self.refuse("has no containers of this API", param)
        for field in _CONTAINER_FIELDS:
            if getattr(self._wanted, field, UNSET):
                self.refuse(f"takes no {field}", f"{param}.{field}")
        self.use_latest(self.list_sessions(history))

    async def recover(self, output: Sequence[OutputItem]) -> str:
        self.use_latest(self.list_sessions(output))
        return ""


def find_session(tool: ResponseTool) -> ServerSession:
    """Return the session of a tool that a tool server runs."""
    session = tool.container if isinstance(tool, ContainerTool) else getattr(tool, "session", None)
    assert isinstance(session, ServerSession)
    return session
