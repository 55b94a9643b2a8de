"""Tool declarations → what a model is offered: chat function schemas under plain, unique names.

What the server runs itself is offered too: the functions of built-in tools (`Hosted`), and what MCP servers listed, as
the history has it. So are tools of the client's that models do not know (render/tools/client_tools.py). A kind of
tool that nothing here can run is not offered. It is named in `ignored`, and refused where tool_choice demands it.

While the client searches for tools itself (tool_search), deferred ones are offered when a search has found them.
"""

from collections.abc import Iterator
from typing import Final

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.core.history.history import History, is_output
from antiphon.core.mcp_rules import allows, needs_approval
from antiphon.core.prompt import Json
from antiphon.errors import InvalidValue
from antiphon.protocol.schemas.grammars import knows_lark
from antiphon.protocol.types.items import (
    AdditionalTools,
    InputItem,
    McpApprovalResponse,
    McpListTools,
    Message,
    ToolSearchOutput,
)
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.tools import (
    ApplyPatchTool,
    CustomTool,
    FunctionTool,
    GrammarInput,
    LocalShellTool,
    McpTool,
    NamespaceTool,
    ShellTool,
    Tool,
    ToolSearchTool,
)
from antiphon.render.tools.client_tools import (
    CLIENT_KINDS,
    CONTAINER,
    LOCAL_SHELL,
    SHELL,
    TOOL_SEARCH,
    ClientTool,
    offered_function,
    searched,
)
from antiphon.render.tools.offered_tools import Hosted as Hosted
from antiphon.render.tools.offered_tools import Hosting as Hosting
from antiphon.render.tools.offered_tools import Key, offered_name, own
from antiphon.render.tools.offered_tools import Offer as Offer
from antiphon.render.tools.offered_tools import Offered as Offered
from antiphon.render.tools.offered_tools import nothing_hosted as nothing_hosted

NOT_SO: Final = "It cannot be run as it is declared."

_NOTHING: Final = Offered()
_DECLARING: Final = frozenset({AdditionalTools, ToolSearchOutput, McpListTools})


class _Declaration(Struct, frozen=True, kw_only=True):
    tool: FunctionTool | CustomTool
    kind: str
    namespace: str | None = None
    about: str = ""  # the namespace
    approval: bool = False
    recipient: str = ""
    hosted: bool = False  # a function of a built-in tool, or of one of the client's own
    deferred: bool = False

    @property
    def key(self) -> Key:
        """A client's function may have the name of one of ours."""
        return own(self.kind) if self.hosted else self.namespace, self.tool.name


def declares(history: History) -> bool:
    """Is there anything in it that adds to what the request declares?"""
    return not (history.plain or _DECLARING.isdisjoint(map(type, history.items)))


def offer_tools(request: CreateResponse, history: History, hosting: Hosting = nothing_hosted) -> Offered:
    """All that is declared; the history's declarations replace earlier ones of the same name."""
    if not request.tools and not declares(history):
        return _NOTHING
    declaring = _Declaring(hosting)
    declaring.declare(request)
    for item in history.items:
        if isinstance(item, AdditionalTools):
            declaring.declared |= {each.key: each for tool in item.tools for each in declaring.flat(tool)}
        elif isinstance(item, ToolSearchOutput):
            declaring.find(item)
        elif isinstance(item, McpListTools):
            declaring.list(item)
        elif declaring.failed and _of_client(item):
            declaring.failed.clear()  # another request has come since: they may be asked again
    return declaring.offered()


class _Declaring:
    """All that is declared so far."""

    def __init__(self, hosting: Hosting) -> None:
        self.declared: dict[Key, _Declaration] = {}
        self._hosting = hosting
        self._ignored: dict[str, None] = {}
        self._servers: dict[str, McpTool] = {}
        self._listed: set[str] = set()
        self._missing: dict[str, str] = {}
        self._found: set[str] = set()  # labels of MCP servers that a search has found
        self.failed: dict[str, str] = {}

    def declare(self, request: CreateResponse) -> None:
        self._servers = {tool.server_label: tool for tool in request.tools if isinstance(tool, McpTool)}
        for index, tool in enumerate(request.tools):
            for each in self.flat(tool):
                if each.key in self.declared:
                    raise InvalidValue(f"The tool {each.tool.name!r} is declared twice.", param=f"tools[{index}].name")
                self.declared[each.key] = each

    def find(self, item: ToolSearchOutput) -> None:
        """What a search has found is not deferred any more. Of an MCP server the request says where it is."""
        for tool in item.tools:
            if isinstance(tool, McpTool) and tool.server_label in self._servers:
                self._found.add(tool.server_label)
            else:
                self.declared |= {each.key: replace(each, deferred=False) for each in self.flat(tool)}

    def list(self, item: McpListTools) -> None:
        """What a server offers is what its last list says, unless that says only what went wrong."""
        server = self._servers.get(item.server_label)
        if server is None:
            self._ignored["mcp_list_tools"] = None
            return
        if item.error is not UNSET:
            self.failed[item.server_label] = item.error
            return
        self._listed.add(item.server_label)
        for key in [key for key, each in self.declared.items() if each.kind == "mcp" and key[0] == item.server_label]:
            del self.declared[key]
        about = "" if server.server_description is UNSET else server.server_description
        for tool in [tool for tool in item.tools if allows(server, tool)]:
            function = FunctionTool(name=tool.name, description=tool.description, parameters=_object(tool.input_schema))
            each = _Declaration(
                tool=function,
                kind="mcp",
                namespace=item.server_label,
                about=about,
                approval=needs_approval(server, tool),
            )
            self.declared.setdefault(each.key, each)  # of two with one name, or a namespace's, the first

    def flat(self, tool: Tool) -> Iterator[_Declaration]:
        match tool:
            case NamespaceTool(name=name, description=about, tools=inner):
                for each in [each for each in inner if _is_callable(each, self._ignored)]:
                    deferred = each.defer_loading is True
                    yield _Declaration(tool=each, kind=_kind(each), namespace=name, about=about, deferred=deferred)
            case FunctionTool() | CustomTool():
                if _is_callable(tool, self._ignored):
                    yield _Declaration(tool=tool, kind=_kind(tool), deferred=tool.defer_loading is True)
            case ShellTool() | LocalShellTool() | ApplyPatchTool() | ToolSearchTool():
                yield from self._of_client(tool)
            case McpTool():
                if tool.server_label not in self._servers:  # who runs its tools knows only those of the request
                    self._ignored["mcp"] = None
            case _:
                yield from self._hosted(tool)

    def _of_client(self, tool: ClientTool) -> Iterator[_Declaration]:
        kind, function = str(tool.__struct_config__.tag), offered_function(tool)
        if function is None:
            self._ignored[kind] = None
            self._missing[kind] = ""
            return
        recipient = CONTAINER if kind in (SHELL, LOCAL_SHELL) else ""
        yield _Declaration(tool=function, kind=kind, recipient=recipient, hosted=True)

    def _hosted(self, tool: Tool) -> Iterator[_Declaration]:
        tag, hosted = str(tool.__struct_config__.tag), self._hosting(tool)
        if hosted is None or hosted.missing or not hosted.functions:
            self._ignored[tag] = None
            self._missing[tag] = "" if hosted is None else hosted.missing or NOT_SO
            return
        for function in hosted.functions:
            recipient = hosted.recipients.get(function.name, "")
            yield _Declaration(tool=function, kind=hosted.kind, recipient=recipient, hosted=True)

    def offered(self) -> Offered:
        failed = {label: why for label, why in self.failed.items() if label not in self._listed}
        searches = any(map(_searches, self.declared.values()))
        hidden = self._hidden() if searches else {}
        if not searches:
            self._note_deferred()
        known = {*self._listed, *failed, *hidden}
        unlisted = tuple([label for label in self._servers if label not in known])
        offered = Offered({}, {}, {}, tuple(self._ignored), unlisted, self._missing, failed, {})
        for key, each in self.declared.items():
            plain = offered_name(each.tool.name, each.namespace, offered.offers)
            offered.names[key] = plain
            if searches and (each.deferred or (each.kind == "mcp" and each.namespace in hidden)):
                offered.deferred[plain] = _offer(plain, each)
                continue
            offered.offers[plain] = _offer(plain, each)
            offered.schemas[plain] = _schema(plain, each, searched(self._findable(hidden)) if _searches(each) else "")
        return offered

    def _hidden(self) -> dict[str, McpTool]:
        """MCP servers that are deferred, until a search has found them."""
        waiting = {label: tool for label, tool in self._servers.items() if label not in self._found}
        return {label: tool for label, tool in waiting.items() if tool.defer_loading is True}

    def _note_deferred(self) -> None:
        """Nobody searches, so the wish is one that nobody fulfils."""
        servers = [tool.defer_loading is True for tool in self._servers.values()]
        if any([*servers, *[each.deferred for each in self.declared.values()]]):
            self._ignored["tools.defer_loading"] = None

    def _findable(self, hidden: dict[str, McpTool]) -> Iterator[tuple[str, str]]:
        """By names that mean something: of namespaces, of servers, and of tools that are in none."""
        names: dict[str, str] = {}
        for each in [each for each in self.declared.values() if each.deferred]:
            own = each.tool.description
            names.setdefault(each.namespace or each.tool.name, each.about if each.namespace else own or "")
        for label, server in hidden.items():
            names.setdefault(label, server.server_description or "")
        yield from names.items()


def _of_client(item: InputItem) -> bool:
    if isinstance(item, Message):
        return item.role != "assistant"
    return is_output(item) or isinstance(item, McpApprovalResponse)


def _object(schema: object) -> Json:
    """What a server says is a schema, if it is one of an object: anything else a model could not call."""
    return schema if isinstance(schema, dict) and schema.get("type", "object") == "object" else {"type": "object"}


def _kind(tool: FunctionTool | CustomTool) -> str:
    return "function" if isinstance(tool, FunctionTool) else "custom"


def _searches(declared: _Declaration) -> bool:
    return declared.kind == TOOL_SEARCH


def _offer(plain: str, declared: _Declaration) -> Offer:
    tool = declared.tool
    grammar = tool.format if isinstance(tool, CustomTool) and isinstance(tool.format, GrammarInput) else None
    name = plain if declared.kind in CLIENT_KINDS else tool.name  # nobody is told of a name of theirs
    return Offer(declared.kind, name, declared.namespace, grammar, declared.approval, declared.recipient)


def _is_callable(tool: FunctionTool | CustomTool, ignored: dict[str, None]) -> bool:
    """Not if only programs may call it, which nothing here runs. Wishes that nobody fulfils yet are named."""
    if tool.asynchronous is True:
        ignored["tools.async"] = None
    if isinstance(tool, CustomTool) and isinstance(tool.format, GrammarInput) and not _holds(tool.format):
        ignored["tools.format"] = None  # the model is told of the grammar, and not held to it
    if tool.allowed_callers is UNSET or "direct" in tool.allowed_callers:
        return True
    ignored["programmatic_tool_calling"] = None
    return False


def _holds(grammar: GrammarInput) -> bool:
    return grammar.syntax == "regex" or knows_lark()


def _schema(name: str, declared: _Declaration, more: str = "") -> Json:
    """`more`: words for the end of its description."""
    tool = declared.tool
    function: Json = {"name": name}
    if description := _description(declared) + more:
        function["description"] = description
    if isinstance(tool, CustomTool):
        function["parameters"] = _input_schema(tool)
    else:
        function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
        if tool.strict:
            function["strict"] = True
    return {"type": "function", "function": function}


def _pattern(tool: CustomTool) -> Json:
    grammar = tool.format
    if isinstance(grammar, GrammarInput) and grammar.syntax == "regex":
        return {"pattern": whole(grammar.definition)}
    return {}


def whole(pattern: str) -> str:
    """A schema's pattern may match anywhere; this one matches all of it."""
    return f"^(?:{pattern})$"


def _description(declared: _Declaration) -> str:
    own = declared.tool.description
    return "\n\n".join([text for text in (declared.about, "" if own is UNSET else own) if text])


def _input_schema(tool: CustomTool) -> Json:
    """A custom tool takes text, and models call functions: so it is a function of one text."""
    about = "The tool's input, as plain text."
    if isinstance(tool.format, GrammarInput):
        kind = "Lark grammar" if tool.format.syntax == "lark" else "regular expression"
        about += f" It must match this {kind}:\n{tool.format.definition}"
    return {
        "type": "object",
        "properties": {"input": {"type": "string", "description": about, **_pattern(tool)}},
        "required": ["input"],
        "additionalProperties": False,
    }
