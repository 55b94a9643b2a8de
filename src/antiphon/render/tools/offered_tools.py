"""Tools a model is offered: functions under plain, unique names, and the tool behind each name."""

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import count
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.prompt import Json
from antiphon.protocol.types.shared_list import SharedTuple
from antiphon.protocol.types.tools import FunctionTool, GrammarInput, Tool

NAME_CHARACTERS: Final = frozenset(string.ascii_letters + string.digits + "_-")
MAX_NAME_LENGTH: Final = 64  # limit of the chat completions API

ToolKey = tuple[str | None, str]  # (namespace, name)


class OfferedTool(Struct, frozen=True):
    """The tool behind an offered name."""

    kind: str  # "function", "custom", "mcp", or the kind of a built-in or client tool
    name: str
    namespace: str | None = None  # label of the server for an MCP tool
    grammar: GrammarInput | None = None  # of a custom tool's input
    approval: bool = False  # the client must approve each call
    recipient: str = ""  # name in gpt-oss, if it was trained with the tool: browser.search
    parameters: Json | None = None  # of a client tool: the schema that the model is offered


class HostedTool(Struct, frozen=True, kw_only=True):
    """A declared tool that is offered if the operator has set it up: the server runs it, or the client a computer."""

    kind: str
    functions: tuple[FunctionTool, ...] = ()
    recipients: Mapping[str, str] = {}  # function name → name in gpt-oss
    setup_hint: str = ""  # how to set the tool up; empty if it is set up
    approval: bool = False  # the client must approve each call
    ignored: Sequence[str] = ()  # options of the declaration that have no effect


class OfferedTools(Struct, frozen=True, dict=True):
    """Offered tools and their schemas by offered name, in the order of declaration."""

    offers: dict[str, OfferedTool] = {}
    schemas: dict[str, Json] = {}
    names: dict[ToolKey, str] = {}  # offered names of all declared tools, including those that cannot be called now
    ignored: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()  # labels of MCP servers whose tools are not listed yet
    setup_hints: dict[str, str] = {}  # declared types of built-in tools → how to set them up
    failed: dict[str, str] = {}  # labels of MCP servers that failed to list their tools → error
    deferred: dict[str, OfferedTool] = {}  # tools that a search must find first

    @cached_property
    def chat_tools(self) -> SharedTuple[Json]:
        """The schemas in the order of declaration."""
        return SharedTuple(self.schemas.values())

    def find_name(self, name: str, namespace: str | None) -> str:
        """Return the offered name, also for a past call whose tool is no longer declared."""
        return self.names.get((namespace, name)) or make_offered_name(name, namespace, ())

    def find_client_tool_name(self, kind: str) -> str:
        """Return the offered name of a client tool or of a hosted shell, also if it is no longer declared."""
        hosted = self.names.get((reserved_namespace(f"hosted_{kind}"), kind), kind)
        return self.names.get((reserved_namespace(kind), kind), hosted)

    def collect_recipients(self) -> dict[str, str]:
        """Map offered names to Harmony recipients, for the tools that have another name in gpt-oss."""
        return {name: offer.recipient for name, offer in self.offers.items() if offer.recipient}

    def restrict_to(self, names: Iterable[str]) -> "OfferedTools":
        """Return a copy that offers only these names."""
        selected = set(names)
        offers = {name: offer for name, offer in self.offers.items() if name in selected}
        return replace(self, offers=offers, schemas={name: self.schemas[name] for name in offers})


HostedToolLookup = Callable[[Tool], HostedTool | None]  # None: this server cannot run the tool


def no_hosted_tool(tool: Tool) -> HostedTool | None:
    """Lookup for callers that run no tools and only pass calls on."""
    return None


def reserved_namespace(kind: str) -> str:
    """Return a namespace that no client can declare. Both computer tools have the same: a request has one of them."""
    return f"{kind.removesuffix('_use_preview')}\0"


def make_offered_name(name: str, namespace: str | None, taken: Iterable[str]) -> str:
    """Return `namespace__name`, with a digest of the real name if it has other characters, is too long or taken."""
    full_name = f"{namespace}__{name}" if namespace else name
    safe_name = "".join([char if char in NAME_CHARACTERS else "_" for char in full_name])
    if safe_name == full_name and len(safe_name) <= MAX_NAME_LENGTH and safe_name not in taken:
        return safe_name
    for number in count():
        digest = blake2b(f"{namespace}\0{name}\0{number}".encode(errors="surrogatepass"), digest_size=4).hexdigest()
        if (unique := f"{safe_name[: MAX_NAME_LENGTH - 9]}_{digest}") not in taken:
            return unique
    raise AssertionError("count() has no end")
