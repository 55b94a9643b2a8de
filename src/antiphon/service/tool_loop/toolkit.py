"""The tools that the server can run for models: built-in tools, MCP servers, approvals and awaited outputs."""

from collections.abc import Callable, Sequence
from itertools import chain

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.core.code_approvals import CODE_KINDS, CODE_LABELS
from antiphon.core.skills import OfferedSkill
from antiphon.errors import InvalidValue, StartupError, UnsupportedParameter
from antiphon.plugins import find_plugin, list_plugins, load_reference
from antiphon.protocol.types.items import AdditionalTools, InputItem, ToolSearchOutput
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.shared_list import derive
from antiphon.protocol.types.tools import (
    AutoContainer,
    CodeInterpreterTool,
    ContainerAuto,
    ContainerReference,
    ContainerSkill,
    FunctionTool,
    InlineSkill,
    McpTool,
    ShellTool,
)
from antiphon.protocol.types.tools import Tool as Declaration
from antiphon.render.tools.computer import ENABLE_HINT, ComputerDeclaration, make_computer_function
from antiphon.render.tools.offered_tools import HostedTool
from antiphon.service.tool_loop.approvals import Approvals
from antiphon.service.tool_loop.tool_outputs import ToolOutputs
from antiphon.tools.base import BuiltInTool, CodeContainers, ToolServices
from antiphon.tools.mcp.client import McpClient
from antiphon.tools.registry import SERVED_TOOLS, TOOLS
from antiphon.tools.tool_server.server import ServedTool

_DECLARING_ITEMS = (AdditionalTools, ToolSearchOutput)


class Toolkit:
    """All server tools, for the life of the server. Without arguments it runs none and rejects them."""

    def __init__(
        self,
        mcp: McpClient | None = None,
        built_in: Sequence[BuiltInTool] = (),
        approvals: Approvals | None = None,
        outputs: ToolOutputs | None = None,
        approves_code: bool = False,
        containers: CodeContainers | None = None,
        has_computer: bool = False,
    ) -> None:
        """`approves_code`: the client must approve calls that run code. `has_computer`: clients may provide one."""
        self.mcp = mcp
        self.built_in = tuple(built_in)
        self._configured = tuple(tool for tool in built_in if not tool.missing)
        self.approvals = approvals
        self.outputs = outputs
        self._approves_code = approves_code
        self._containers = containers
        self.computer_hint = "" if has_computer else ENABLE_HINT

    def find_hosted(self, declaration: Declaration) -> HostedTool | None:
        """Return the built-in tool for this declaration and the functions that it offers to the model."""
        if isinstance(declaration, ComputerDeclaration):
            kind, hint = str(declaration.__struct_config__.tag), self.computer_hint
            return HostedTool(kind=kind, functions=(make_computer_function(declaration),), setup_hint=hint)
        if (tool := self.find_built_in(declaration)) is None:
            served = self.find_tool_server(declaration)
            return None if served is None else HostedTool(kind=served.kind)
        if tool.missing:
            return HostedTool(kind=tool.kind, setup_hint=tool.missing)
        recipients = {name: recipient for recipient, name in tool.recipients.items()}
        return HostedTool(
            kind=tool.kind,
            functions=tool.list_functions(declaration),
            recipients=recipients,
            approval=self._approves_code and tool.kind in CODE_LABELS,
            ignored=tool.list_ignored(declaration),
        )

    def find_built_in(self, declaration: Declaration) -> BuiltInTool | None:
        """Return the built-in tool that serves this declaration; None if the client runs it."""
        if isinstance(declaration, FunctionTool) or (isinstance(declaration, ShellTool) and not declaration.is_hosted):
            return None  # most declarations are functions
        return next((tool for tool in self.built_in if isinstance(declaration, tool.types)), None)

    def find_tool_server(self, declaration: Declaration) -> ServedTool | None:
        """Return the tool for whose tool server an `mcp` declaration has a client's headers: it has its label alone."""
        if not isinstance(declaration, McpTool) or declaration.server_url is not UNSET:
            return None
        label = declaration.server_label
        served = [tool for tool in self.built_in if isinstance(tool, ServedTool) and label in tool.labels]
        return served[0] if served and (self.mcp is None or label not in self.mcp.labels) else None

    def list_labels(self, request: CreateResponse) -> set[str]:
        """Return the labels of the MCP servers that a request declares."""
        declared = [tool for tool in request.tools if isinstance(tool, McpTool)]
        return {tool.server_label for tool in declared if self.find_tool_server(tool) is None}

    def check_mcp_servers(self, request: CreateResponse) -> None:
        """Validate the MCP servers of a request without contacting them, and fill in the fields that are echoed."""
        labels: set[str] = set()
        for index, tool in enumerate(request.tools):
            if not isinstance(tool, McpTool):
                continue
            param = f"tools[{index}]"
            if tool.server_label in labels:
                raise InvalidValue(
                    f"The MCP server {tool.server_label!r} is declared twice.", param=f"{param}.server_label"
                )
            labels.add(tool.server_label)
            if self.mcp is not None and (served := self.find_tool_server(tool)) is not None:
                served.check_credentials(tool, request.tools, param)
                labels |= served.labels
            else:
                self.check_mcp_server(tool, param)

    def check_mcp_server(self, tool: McpTool, param: str) -> McpClient:
        """Validate one MCP server without contacting it, fill in the fields that are echoed, and return its client."""
        if self.mcp is None:
            raise UnsupportedParameter("MCP servers are not enabled on this server.", param=param)
        if self._approves_code and tool.server_label in CODE_KINDS:
            raise InvalidValue(
                f"The label {tool.server_label!r} is reserved for approvals of code.", param=f"{param}.server_label"
            )
        self.mcp.check(tool, param)
        tool.require_approval = self.mcp.get_approval(tool)
        tool.server_description = self.mcp.get_description(tool)
        return self.mcp

    async def find_skills(
        self, tenant: str, request: CreateResponse
    ) -> tuple[CreateResponse, tuple[OfferedSkill, ...]]:
        """Return the skills in the declared containers, and the request with the versions that it means now."""
        found: dict[str, OfferedSkill] = {}
        if (containers := self._containers) is None:
            return request, ()
        declared = derive(request.tools, "containers", lambda: _list_containers(request.tools))
        for index, (wanted, param) in declared.items():
            pinned, skills = await containers.find_skills(tenant, wanted, param)
            found |= {skill.path: skill for skill in skills}
            if isinstance(pinned, ContainerAuto) and skills:
                tools = [*request.tools]
                tools[index] = replace(tools[index], environment=pinned)
                request = replace(request, tools=tools)
        return request, (*found.values(),)

    def runs_tools(self, request: CreateResponse, earlier: Sequence[InputItem] = ()) -> bool:
        return any(isinstance(tool, McpTool) for tool in request.tools) or bool(self.find_declared(request, earlier))

    def find_declared(
        self, request: CreateResponse, earlier: Sequence[InputItem]
    ) -> dict[str, tuple[BuiltInTool, Declaration]]:
        """Return the declared built-in tools that are configured, by kind, in the order of the registry.

        Items of the history declare tools too.
        """
        if not self._configured:
            return {}
        item_tools = [item.tools for item in (*earlier, *request.input) if isinstance(item, _DECLARING_ITEMS)]
        found: dict[str, tuple[BuiltInTool, Declaration]] = {}
        for declaration in chain(request.tools, *item_tools):
            built_in = self.find_built_in(declaration)
            if built_in is not None and not built_in.missing:
                found.setdefault(built_in.kind, (built_in, declaration))
        return {tool.kind: found[tool.kind] for tool in self._configured if tool.kind in found}

    def should_wait(self, request: CreateResponse, stored: bool) -> bool:
        """Return whether a response to this request waits for the outputs of its client's tools."""
        return self.outputs is not None and bool(request.tools) and self.outputs.should_wait(request, stored)

    async def close(self) -> None:
        for tool in self.built_in:
            await tool.close()
        if self.mcp is not None:
            await self.mcp.close()


def _list_containers(tools: Sequence[Declaration]) -> dict[int, tuple[str | AutoContainer, str]]:
    """Return the containers of the first shell and of the first code interpreter, with their positions."""
    found: dict[type, tuple[int, tuple[str | AutoContainer, str]]] = {}
    for index, tool in enumerate(tools):
        if isinstance(tool, CodeInterpreterTool):
            found.setdefault(type(tool), (index, (tool.container, f"tools[{index}].container")))
        elif isinstance(tool, ShellTool) and isinstance(tool.environment, ContainerAuto | ContainerReference):
            wanted = tool.environment if isinstance(tool.environment, ContainerAuto) else tool.environment.container_id
            found.setdefault(type(tool), (index, (wanted, f"tools[{index}].environment")))
    return dict(found.values())


def hide_inline_skills(tools: Sequence[Declaration]) -> list[Declaration]:
    """Return the tools without the data of skills, which a Response does not repeat."""
    return [
        replace(tool, environment=replace(tool.environment, skills=[*map(_hide_data, tool.environment.skills)]))
        if isinstance(tool, ShellTool) and isinstance(tool.environment, ContainerAuto) and tool.environment.skills
        else tool
        for tool in tools
    ]


def _hide_data(skill: ContainerSkill) -> ContainerSkill:
    return replace(skill, source=replace(skill.source, data="")) if isinstance(skill, InlineSkill) else skill


def built_in_tools(services: ToolServices) -> list[BuiltInTool]:
    """Return the built-in tools. A plug-in or tool server that is configured replaces the tool of this server."""
    served = services.config.tools.tool_server_specs
    paths = {kind: path for kind, (name, path) in SERVED_TOOLS.items() if name in served}
    plugins = _load_plugins(services.config.tools.tool_plugin)
    if both := paths.keys() & plugins:
        raise StartupError(f"Both --tool-server and --tool-plugin run {min(both)}: remove one of them.")
    chosen = {**TOOLS, **paths}
    return [(plugins.get(kind) or load_reference(chosen[kind]))(services) for kind in TOOLS]


def _load_plugins(names: Sequence[str]) -> dict[str, Callable[[ToolServices], BuiltInTool]]:
    """Return the tools of other packages that the operator has chosen, by the kind of tool that they replace."""
    found: dict[str, Callable[[ToolServices], BuiltInTool]] = {}
    for name in names:
        if (tool := find_plugin("tools", name, {})) is None:
            offered = ", ".join(plugin for plugin, _ in list_plugins("tools")) or "none"
            raise StartupError(f"--tool-plugin names {name!r}, which no package has; installed plug-ins: {offered}.")
        kind = getattr(tool, "kind", None)
        if kind not in TOOLS or kind in found:
            unknown = f"its kind is {kind!r}, not one of {', '.join(TOOLS)}"
            problem = f"another plug-in has the kind {kind}" if kind in found else unknown
            raise StartupError(f"--tool-plugin {name}: {problem}.")
        found[kind] = tool
    return found
