"""Tool declarations → what a model is offered: chat function schemas under plain, unique names.

A kind of tool that nothing here can run is not offered. It is named in `ignored`, and refused where
tool_choice demands it.
"""

import string
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import count
from typing import Final, Literal

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.core.history import History
from antiphon.core.prompt import Json
from antiphon.errors import InvalidValue
from antiphon.protocol.grammars import knows_lark
from antiphon.protocol.items import AdditionalTools, McpListTools, ToolSearchOutput
from antiphon.protocol.request import CreateResponse
from antiphon.protocol.tools import CustomTool, FunctionTool, GrammarInput, NamespaceTool, Tool

NAME_CHARACTERS: Final = frozenset(string.ascii_letters + string.digits + "_-")
LONGEST_NAME: Final = 64  # what chat completions take

Key = tuple[str | None, str]  # namespace and name


class Offer(Struct, frozen=True):
    """What a call under an offered name really is."""

    kind: Literal["function", "custom"]
    name: str
    namespace: str | None = None
    grammar: GrammarInput | None = None  # of a custom tool's input


class Offered(Struct, frozen=True):
    """Offers and their schemas by offered name, in the order of declaration."""

    offers: dict[str, Offer] = {}
    schemas: dict[str, Json] = {}
    names: dict[Key, str] = {}  # the offered names of all that is declared, also of what may not be called now
    ignored: tuple[str, ...] = ()

    def name_of(self, name: str, namespace: str | None) -> str:
        """The offered name, also of a call in the history whose tool is declared no more."""
        return self.names.get((namespace, name)) or _offered_name(name, namespace, ())

    def only(self, names: Iterable[str]) -> "Offered":
        kept = set(names)
        offers = {name: offer for name, offer in self.offers.items() if name in kept}
        return replace(self, offers=offers, schemas={name: self.schemas[name] for name in offers})


_NOTHING: Final = Offered()
_DECLARING: Final = frozenset({AdditionalTools, ToolSearchOutput, McpListTools})


class _Declaration(Struct, frozen=True):
    tool: FunctionTool | CustomTool
    namespace: NamespaceTool | None = None

    @property
    def key(self) -> Key:
        return (self.namespace.name if self.namespace else None, self.tool.name)


def offer_tools(request: CreateResponse, history: History) -> Offered:
    """All that is declared; the history's declarations replace earlier ones of the same name."""
    if not request.tools and _DECLARING.isdisjoint(map(type, history.items)):
        return _NOTHING
    ignored: dict[str, None] = {}
    declared = _declared(request, ignored)
    for item in history.items:
        if isinstance(item, (AdditionalTools, ToolSearchOutput)):
            declared |= {each.key: each for tool in item.tools for each in _flat(tool, ignored)}
        elif isinstance(item, McpListTools):
            ignored["mcp_list_tools"] = None
    return _offered(declared, tuple(ignored))


def _offered(declared: dict[Key, _Declaration], ignored: tuple[str, ...]) -> Offered:
    offered = Offered({}, {}, {}, ignored)
    for (namespace, name), each in declared.items():
        plain = _offered_name(name, namespace, offered.offers)
        offered.names[namespace, name] = plain
        offered.offers[plain] = _offer(each)
        offered.schemas[plain] = _schema(plain, each)
    return offered


def _offer(declared: _Declaration) -> Offer:
    tool, (namespace, name) = declared.tool, declared.key
    if isinstance(tool, FunctionTool):
        return Offer("function", name, namespace)
    return Offer("custom", name, namespace, tool.format if isinstance(tool.format, GrammarInput) else None)


def _declared(request: CreateResponse, ignored: dict[str, None]) -> dict[Key, _Declaration]:
    declared: dict[Key, _Declaration] = {}
    for index, tool in enumerate(request.tools):
        for each in _flat(tool, ignored):
            if each.key in declared:
                raise InvalidValue(f"The tool {each.tool.name!r} is declared twice.", param=f"tools[{index}].name")
            declared[each.key] = each
    return declared


def _flat(tool: Tool, ignored: dict[str, None]) -> Iterator[_Declaration]:
    if isinstance(tool, NamespaceTool):
        yield from [_Declaration(inner, tool) for inner in tool.tools if _is_callable(inner, ignored)]
    elif not isinstance(tool, FunctionTool | CustomTool):
        ignored[str(tool.__struct_config__.tag)] = None
    elif _is_callable(tool, ignored):
        yield _Declaration(tool)


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
    about = declared.namespace.description if declared.namespace else ""
    return "\n\n".join([text for text in (about, "" if own is UNSET else own) if text])


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
