"""Tool declarations → the tools a model is offered: chat function schemas under plain, unique names.

The offered tools include those that the server runs: functions of built-in tools (`HostedTool`) and tools listed by MCP
servers, as recorded in the history. They also include client tools that models do not know
(render/tools/client_tools.py). Kinds of tools that this server cannot run are not offered; they are named in `ignored`
and rejected if tool_choice requires them.

While the client searches for tools itself (tool_search), deferred tools are offered once a search has found them.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.core.history.history import History, is_output
from antiphon.core.mcp_rules import is_allowed, needs_approval
from antiphon.core.prompt import Json
from antiphon.errors import InvalidValue
from antiphon.protocol.schemas.grammars import has_lark
from antiphon.protocol.types import items as it
from antiphon.protocol.types import tools as wire
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.shared_list import derive
from antiphon.render.tools import client_tools
from antiphon.render.tools.offered_tools import (
    HostedToolLookup,
    OfferedTool,
    OfferedTools,
    ToolKey,
    make_offered_name,
    no_hosted_tool,
    reserved_namespace,
)

NOT_RUNNABLE: Final = "It cannot be run as it is declared."

_NO_TOOLS: Final = OfferedTools()
_DECLARING_ITEMS: Final = frozenset({it.AdditionalTools, it.ToolSearchOutput, it.McpListTools})


class _ToolDeclaration(Struct, frozen=True, kw_only=True):
    """One declared tool before it is offered."""

    tool: wire.FunctionTool | wire.CustomTool
    kind: str
    namespace: str | None = None
    namespace_description: str = ""  # placed before the tool's own description
    approval: bool = False
    recipient: str = ""
    hosted: bool = False  # function of a built-in tool or of a client tool
    deferred: bool = False

    @property
    def key(self) -> ToolKey:
        """Namespace and name. Hosted tools have a reserved namespace: a client's function may have their name."""
        return reserved_namespace(self.kind) if self.hosted else self.namespace, self.tool.name


def declares_tools(history: History) -> bool:
    """Return whether the history adds tools to those of the request."""
    return not (history.messages_only or _DECLARING_ITEMS.isdisjoint(map(type, history.items)))


def offer_tools(
    request: CreateResponse, history: History, lookup_hosted: HostedToolLookup = no_hosted_tool
) -> OfferedTools:
    """Collect all declared tools; declarations in the history replace earlier ones of the same name."""
    if declares_tools(history):
        return _collect_tools(request, history, lookup_hosted)
    if not request.tools:
        return _NO_TOOLS
    return derive(request.tools, lookup_hosted, partial(_collect_tools, request, History(), lookup_hosted))


def _collect_tools(request: CreateResponse, history: History, lookup_hosted: HostedToolLookup) -> OfferedTools:
    collector = _ToolCollector(lookup_hosted)
    collector.add_request(request)
    for item in history.items:
        if isinstance(item, it.AdditionalTools):
            collector.declared |= {
                declaration.key: declaration for tool in item.tools for declaration in collector.flatten(tool)
            }
        elif isinstance(item, it.ToolSearchOutput):
            collector.add_search_output(item)
        elif isinstance(item, it.McpListTools):
            collector.add_mcp_list(item)
        elif collector.failed and _is_from_client(item):
            collector.failed.clear()  # a new request has arrived since, so the servers may be contacted again
    return collector.build()


class _ToolCollector:
    """Collects declarations from the request and the history."""

    def __init__(self, lookup_hosted: HostedToolLookup) -> None:
        self.declared: dict[ToolKey, _ToolDeclaration] = {}
        self._lookup_hosted = lookup_hosted
        self._ignored: dict[str, None] = {}
        self._servers: dict[str, wire.McpTool] = {}
        self._listed: set[str] = set()
        self._setup_hints: dict[str, str] = {}
        self._found_servers: set[str] = set()  # labels of MCP servers that a search has found
        self.failed: dict[str, str] = {}

    def add_request(self, request: CreateResponse) -> None:
        servers = [tool for tool in request.tools if isinstance(tool, wire.McpTool) and wire.may_models_call(tool)]
        self._servers = {tool.server_label: tool for tool in servers if self._lookup_hosted(tool) is None}
        for index, tool in enumerate(request.tools):
            for declaration in self.flatten(tool):
                if declaration.key in self.declared:
                    raise InvalidValue(
                        f"The tool {declaration.tool.name!r} is declared twice.", param=f"tools[{index}].name"
                    )
                self.declared[declaration.key] = declaration

    def add_search_output(self, item: it.ToolSearchOutput) -> None:
        """Undefer the tools that a search has found. For an MCP server the declaration in the request applies."""
        for tool in item.tools:
            if isinstance(tool, wire.McpTool) and tool.server_label in self._servers:
                self._found_servers.add(tool.server_label)
            else:
                self.declared |= {
                    declaration.key: replace(declaration, deferred=False) for declaration in self.flatten(tool)
                }

    def add_mcp_list(self, item: it.McpListTools) -> None:
        """Replace the tools of an MCP server by its latest list, unless that list holds only an error."""
        if (server := self._servers.get(item.server_label)) is None:
            self._ignored["mcp_list_tools"] = None
            return
        if item.error is not UNSET:
            self.failed[item.server_label] = item.error
            return
        self._listed.add(item.server_label)
        for key, declaration in [*self.declared.items()]:
            if declaration.kind == "mcp" and key[0] == item.server_label:
                del self.declared[key]
        for tool in [tool for tool in item.tools if is_allowed(server, tool)]:
            parameters = _object_schema(tool.input_schema)
            function = wire.FunctionTool(name=tool.name, description=tool.description, parameters=parameters)
            declaration = _ToolDeclaration(
                tool=function,
                kind="mcp",
                namespace=item.server_label,
                namespace_description=server.server_description or "",
                approval=needs_approval(server, tool),
            )
            # the first declaration wins over later ones with the same name or namespace
            self.declared.setdefault(declaration.key, declaration)

    def flatten(self, tool: wire.Tool) -> Iterator[_ToolDeclaration]:
        match tool:
            case wire.NamespaceTool(name=name, description=description, tools=inner):
                for inner_tool in inner:
                    for declaration in self.flatten(inner_tool):
                        yield replace(declaration, namespace=name, namespace_description=description)
            case wire.FunctionTool() | wire.CustomTool():
                if _is_callable(tool, self._ignored):
                    kind = "function" if isinstance(tool, wire.FunctionTool) else "custom"
                    yield _ToolDeclaration(tool=tool, kind=kind, deferred=tool.defer_loading is True)
            case wire.ShellTool(is_hosted=True):
                yield from self._flatten_hosted_tool(tool)
            case wire.ShellTool() | wire.LocalShellTool() | wire.ApplyPatchTool() | wire.ToolSearchTool():
                yield from self._flatten_client_tool(tool)
            case wire.McpTool():
                if not wire.may_models_call(tool):
                    self._ignored["programmatic_tool_calling"] = None
                elif tool.server_label not in self._servers and self._lookup_hosted(tool) is None:
                    self._ignored["mcp"] = None  # only the MCP servers of the request can be called
            case _:
                yield from self._flatten_hosted_tool(tool)

    def _flatten_client_tool(self, tool: client_tools.ClientTool) -> Iterator[_ToolDeclaration]:
        kind, function = str(tool.__struct_config__.tag), client_tools.to_function_tool(tool)
        if function is None:
            self._ignored[kind] = None
            self._setup_hints[kind] = ""
            return
        recipient = client_tools.CONTAINER_EXEC if kind in (client_tools.SHELL, client_tools.LOCAL_SHELL) else ""
        yield _ToolDeclaration(tool=function, kind=kind, recipient=recipient, hosted=True)

    def _flatten_hosted_tool(self, tool: wire.Tool) -> Iterator[_ToolDeclaration]:
        tag, hosted = str(tool.__struct_config__.tag), self._lookup_hosted(tool)
        if hosted is None or hosted.setup_hint or not hosted.functions:
            self._ignored[tag] = None
            self._setup_hints[tag] = "" if hosted is None else hosted.setup_hint or NOT_RUNNABLE
            return
        self._ignored |= dict.fromkeys(hosted.ignored)
        for function in hosted.functions:
            recipient = (
                client_tools.CONTAINER_EXEC
                if hosted.kind == client_tools.HOSTED_SHELL
                else hosted.recipients.get(function.name, "")
            )
            yield _ToolDeclaration(
                tool=function, kind=hosted.kind, recipient=recipient, approval=hosted.approval, hosted=True
            )

    def build(self) -> OfferedTools:
        failed = {label: reason for label, reason in self.failed.items() if label not in self._listed}
        has_search = any(map(_is_tool_search, self.declared.values()))
        hidden = self._hidden_servers() if has_search else {}
        if not has_search:
            self._report_ignored_deferral()
        resolved = {*self._listed, *failed, *hidden}
        unlisted = tuple([label for label in self._servers if label not in resolved])
        offered = OfferedTools({}, {}, {}, tuple(self._ignored), unlisted, self._setup_hints, failed, {})
        for key, declaration in self.declared.items():
            name = make_offered_name(declaration.tool.name, declaration.namespace, offered.offers)
            offered.names[key] = name
            if has_search and (declaration.deferred or (declaration.kind == "mcp" and declaration.namespace in hidden)):
                offered.deferred[name] = _to_offered_tool(name, declaration)
                continue
            offered.offers[name] = _to_offered_tool(name, declaration)
            offered.schemas[name] = _chat_schema(
                name,
                declaration,
                client_tools.render_searchable(self._list_searchable(hidden)) if _is_tool_search(declaration) else "",
            )
        return offered

    def _hidden_servers(self) -> dict[str, wire.McpTool]:
        """Return the deferred MCP servers that no search has found yet."""
        waiting = {label: tool for label, tool in self._servers.items() if label not in self._found_servers}
        return {label: tool for label, tool in waiting.items() if tool.defer_loading is True}

    def _report_ignored_deferral(self) -> None:
        """Report defer_loading as ignored: no search tool is declared, so nothing is deferred."""
        servers = [tool.defer_loading is True for tool in self._servers.values()]
        if any([*servers, *[declaration.deferred for declaration in self.declared.values()]]):
            self._ignored["tools.defer_loading"] = None

    def _list_searchable(self, hidden: dict[str, wire.McpTool]) -> Iterator[tuple[str, str]]:
        """Return names and descriptions of what a search may find: namespaces, MCP servers and other tools."""
        names: dict[str, str] = {}
        for declaration in [declaration for declaration in self.declared.values() if declaration.deferred]:
            description = declaration.tool.description
            names.setdefault(
                declaration.namespace or declaration.tool.name,
                declaration.namespace_description if declaration.namespace else description or "",
            )
        for label, server in hidden.items():
            names.setdefault(label, server.server_description or "")
        yield from names.items()


def _is_from_client(item: it.InputItem) -> bool:
    if isinstance(item, it.Message):
        return item.role != "assistant"
    return is_output(item) or isinstance(item, it.McpApprovalResponse)


def _object_schema(schema: object) -> Json:
    """Return a listed schema if it describes an object; a model could not call any other."""
    return schema if isinstance(schema, dict) and schema.get("type", "object") == "object" else {"type": "object"}


def _is_tool_search(declaration: _ToolDeclaration) -> bool:
    return declaration.kind == client_tools.TOOL_SEARCH


def _to_offered_tool(offered_as: str, declaration: _ToolDeclaration) -> OfferedTool:
    tool = declaration.tool
    grammar = tool.format if isinstance(tool, wire.CustomTool) and isinstance(tool.format, wire.GrammarInput) else None
    # client tools and shells have no name of their own in the API
    is_client_tool = declaration.kind in client_tools.CLIENT_KINDS
    return OfferedTool(
        declaration.kind,
        offered_as if is_client_tool or declaration.kind == client_tools.HOSTED_SHELL else tool.name,
        declaration.namespace,
        grammar,
        declaration.approval,
        declaration.recipient,
        tool.parameters if is_client_tool and isinstance(tool, wire.FunctionTool) else None,
    )


def _is_callable(tool: wire.FunctionTool | wire.CustomTool, ignored: dict[str, None]) -> bool:
    """Return whether models may call the tool: not if only programs may, which this server does not run.

    Options of the tool that are not supported are added to `ignored`.
    """
    if tool.asynchronous is True:
        ignored["tools.async"] = None
    if isinstance(tool, wire.FunctionTool) and tool.output_schema:
        ignored["tools.output_schema"] = None  # chat templates have no place for it
    grammar = tool.format if isinstance(tool, wire.CustomTool) else None
    if isinstance(grammar, wire.GrammarInput) and grammar.syntax == "lark" and not has_lark():
        ignored["tools.format"] = None  # the grammar is described to the model but not enforced
    if wire.may_models_call(tool):
        return True
    ignored["programmatic_tool_calling"] = None
    return False


def _chat_schema(name: str, declaration: _ToolDeclaration, suffix: str = "") -> Json:
    """Build the chat function schema. `suffix` is appended to the description."""
    tool = declaration.tool
    function: Json = {"name": name}
    descriptions = filter(None, [declaration.namespace_description, tool.description or ""])
    if description := "\n\n".join(descriptions) + suffix:
        function["description"] = description
    if isinstance(tool, wire.CustomTool):
        function["parameters"] = _input_schema(tool)
    else:
        function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
        if tool.strict:
            function["strict"] = True
    return {"type": "function", "function": function}


def anchor_pattern(pattern: str) -> str:
    """Anchor a pattern: JSON Schema patterns match anywhere, this one must match the complete text."""
    return f"^(?:{pattern})$"


def _input_schema(tool: wire.CustomTool) -> Json:
    """Return the schema of a custom tool, which takes text: it is offered as a function with one text parameter."""
    text: Json = {"type": "string", "description": "The tool's input, as plain text."}
    if isinstance(tool.format, wire.GrammarInput):
        kind = "Lark grammar" if tool.format.syntax == "lark" else "regular expression"
        text["description"] += f" It must match this {kind}:\n{tool.format.definition}"
        if tool.format.syntax == "regex":
            text["pattern"] = anchor_pattern(tool.format.definition)
    return {"type": "object", "properties": {"input": text}, "required": ["input"], "additionalProperties": False}
