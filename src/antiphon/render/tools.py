"""Tool declarations → what a model is offered: chat function schemas under plain, unique names.

What the server runs itself is offered too: the functions of built-in tools (`Hosted`), and what MCP servers listed, as
the history has it. A kind of tool that nothing here can run is not offered. It is named in `ignored`, and refused where
tool_choice demands it.
"""

import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import count
from typing import Final

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.core.history import History, is_output
from antiphon.core.mcp_rules import allows, needs_approval
from antiphon.core.prompt import Json
from antiphon.errors import InvalidValue
from antiphon.protocol.grammars import knows_lark
from antiphon.protocol.items import (
    AdditionalTools,
    InputItem,
    McpApprovalResponse,
    McpListTools,
    Message,
    ToolSearchOutput,
)
from antiphon.protocol.request import CreateResponse
from antiphon.protocol.tools import CustomTool, FunctionTool, GrammarInput, McpTool, NamespaceTool, Tool

NAME_CHARACTERS: Final = frozenset(string.ascii_letters + string.digits + "_-")
LONGEST_NAME: Final = 64  # what chat completions take

Key = tuple[str | None, str]  # namespace and name


class Offer(Struct, frozen=True):
    """What a call under an offered name really is."""

    kind: str  # function, custom, mcp, or that of a built-in tool
    name: str
    namespace: str | None = None  # of an MCP server's tool: its label
    grammar: GrammarInput | None = None  # of a custom tool's input
    approval: bool = False  # a client has to allow each call of it
    recipient: str = ""  # how gpt-oss calls it, if that knows it: browser.search


class Hosted(Struct, frozen=True, kw_only=True):
    """A declared tool that the server runs itself, if its operator has set it up."""

    kind: str
    functions: tuple[FunctionTool, ...] = ()
    recipients: Mapping[str, str] = {}  # how gpt-oss calls them, by their names
    missing: str = ""  # how to set it up


class Offered(Struct, frozen=True):
    """Offers and their schemas by offered name, in the order of declaration."""

    offers: dict[str, Offer] = {}
    schemas: dict[str, Json] = {}
    names: dict[Key, str] = {}  # the offered names of all that is declared, also of what may not be called now
    ignored: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()  # labels of MCP servers whose tools are not known yet
    missing: dict[str, str] = {}  # declared types of built-in tools → how they would be set up
    failed: dict[str, str] = {}  # labels of MCP servers that did not list their tools just now → why

    def name_of(self, name: str, namespace: str | None) -> str:
        """The offered name, also of a call in the history whose tool is declared no more."""
        return self.names.get((namespace, name)) or _offered_name(name, namespace, ())

    def recipients(self) -> dict[str, str]:
        """Of what may be called, what gpt-oss knows by another name."""
        return {name: offer.recipient for name, offer in self.offers.items() if offer.recipient}

    def only(self, names: Iterable[str]) -> "Offered":
        kept = set(names)
        offers = {name: offer for name, offer in self.offers.items() if name in kept}
        return replace(self, offers=offers, schemas={name: self.schemas[name] for name in offers})


Hosting = Callable[[Tool], Hosted | None]  # None: nothing here runs it

_NOTHING: Final = Offered()
_DECLARING: Final = frozenset({AdditionalTools, ToolSearchOutput, McpListTools})


class _Declaration(Struct, frozen=True, kw_only=True):
    tool: FunctionTool | CustomTool
    kind: str
    namespace: str | None = None
    about: str = ""  # the namespace
    approval: bool = False
    recipient: str = ""
    hosted: bool = False  # a function of a built-in tool

    @property
    def key(self) -> Key:
        """A client's function may have the name of one of ours."""
        return f"{self.kind}\0" if self.hosted else self.namespace, self.tool.name


def nothing_hosted(tool: Tool) -> Hosted | None:
    """For who only passes calls on."""
    return None


def offer_tools(request: CreateResponse, history: History, hosting: Hosting = nothing_hosted) -> Offered:
    """All that is declared; the history's declarations replace earlier ones of the same name."""
    if not request.tools and _DECLARING.isdisjoint(map(type, history.items)):
        return _NOTHING
    declaring = _Declaring(hosting)
    declaring.declare(request)
    for item in history.items:
        if isinstance(item, (AdditionalTools, ToolSearchOutput)):
            declaring.declared |= {each.key: each for tool in item.tools for each in declaring.flat(tool)}
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
        self.failed: dict[str, str] = {}

    def declare(self, request: CreateResponse) -> None:
        for index, tool in enumerate(request.tools):
            for each in self.flat(tool):
                if each.key in self.declared:
                    raise InvalidValue(f"The tool {each.tool.name!r} is declared twice.", param=f"tools[{index}].name")
                self.declared[each.key] = each

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
                    yield _Declaration(tool=each, kind=_kind(each), namespace=name, about=about)
            case FunctionTool() | CustomTool():
                if _is_callable(tool, self._ignored):
                    yield _Declaration(tool=tool, kind=_kind(tool))
            case McpTool():
                self._servers[tool.server_label] = tool
            case _:
                yield from self._hosted(tool)

    def _hosted(self, tool: Tool) -> Iterator[_Declaration]:
        tag, hosted = str(tool.__struct_config__.tag), self._hosting(tool)
        if hosted is None or hosted.missing or not hosted.functions:
            self._ignored[tag] = None
            self._missing[tag] = "" if hosted is None else hosted.missing
            return
        for function in hosted.functions:
            recipient = hosted.recipients.get(function.name, "")
            yield _Declaration(tool=function, kind=hosted.kind, recipient=recipient, hosted=True)

    def offered(self) -> Offered:
        failed = {label: why for label, why in self.failed.items() if label not in self._listed}
        unlisted = tuple([label for label in self._servers if label not in self._listed and label not in failed])
        offered = Offered({}, {}, {}, tuple(self._ignored), unlisted, self._missing, failed)
        for key, each in self.declared.items():
            plain = _offered_name(each.tool.name, each.namespace, offered.offers)
            offered.names[key] = plain
            offered.offers[plain] = _offer(each)
            offered.schemas[plain] = _schema(plain, each)
        return offered


def _of_client(item: InputItem) -> bool:
    if isinstance(item, Message):
        return item.role != "assistant"
    return is_output(item) or isinstance(item, McpApprovalResponse)


def _object(schema: object) -> Json:
    """What a server says is a schema, if it is one of an object: anything else a model could not call."""
    return schema if isinstance(schema, dict) and schema.get("type", "object") == "object" else {"type": "object"}


def _kind(tool: FunctionTool | CustomTool) -> str:
    return "function" if isinstance(tool, FunctionTool) else "custom"


def _offer(declared: _Declaration) -> Offer:
    tool = declared.tool
    grammar = tool.format if isinstance(tool, CustomTool) and isinstance(tool.format, GrammarInput) else None
    return Offer(declared.kind, tool.name, declared.namespace, grammar, declared.approval, declared.recipient)


def _is_callable(tool: FunctionTool | CustomTool, ignored: dict[str, None]) -> bool:
    """Not if only programs may call it, which nothing here runs. Wishes that nobody fulfils yet are named."""
    if tool.defer_loading is True:
        ignored["tools.defer_loading"] = None
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


def _offered_name(name: str, namespace: str | None, taken: Iterable[str]) -> str:
    """`namespace__name`; what is no plain name, too long or taken gets a digest of the real one."""
    whole = f"{namespace}__{name}" if namespace else name
    plain = "".join([char if char in NAME_CHARACTERS else "_" for char in whole])
    if plain == whole and len(plain) <= LONGEST_NAME and plain not in taken:
        return plain
    for number in count():
        digest = blake2b(f"{namespace}\0{name}\0{number}".encode(errors="surrogatepass"), digest_size=4).hexdigest()
        if (unique := f"{plain[: LONGEST_NAME - 9]}_{digest}") not in taken:
            return unique
    raise AssertionError("count() has no end")


def _schema(name: str, declared: _Declaration) -> Json:
    tool = declared.tool
    function: Json = {"name": name}
    if description := _description(declared):
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
