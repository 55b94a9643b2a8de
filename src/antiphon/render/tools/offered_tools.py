"""What a model is offered: functions under plain, unique names, and what a call of each really is."""

import string
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from itertools import count
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.prompt import Json
from antiphon.protocol.types.tools import FunctionTool, GrammarInput, Tool

NAME_CHARACTERS: Final = frozenset(string.ascii_letters + string.digits + "_-")
LONGEST_NAME: Final = 64  # what chat completions take

Key = tuple[str | None, str]  # namespace and name


class Offer(Struct, frozen=True):
    """What a call under an offered name really is."""

    kind: str  # function, custom, mcp, or that of a built-in tool or of one of the client's own
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
    deferred: dict[str, Offer] = {}  # what a search has to find first

    def name_of(self, name: str, namespace: str | None) -> str:
        """The offered name, also of a call in the history whose tool is declared no more."""
        return self.names.get((namespace, name)) or offered_name(name, namespace, ())

    def own_name(self, kind: str) -> str:
        """The offered name of one of the client's own tools, also if it is declared no more."""
        return self.names.get((own(kind), kind), kind)

    def recipients(self) -> dict[str, str]:
        """Of what may be called, what gpt-oss knows by another name."""
        return {name: offer.recipient for name, offer in self.offers.items() if offer.recipient}

    def only(self, names: Iterable[str]) -> "Offered":
        kept = set(names)
        offers = {name: offer for name, offer in self.offers.items() if name in kept}
        return replace(self, offers=offers, schemas={name: self.schemas[name] for name in offers})


Hosting = Callable[[Tool], Hosted | None]  # None: nothing here runs it


def nothing_hosted(tool: Tool) -> Hosted | None:
    """For who only passes calls on."""
    return None


def own(kind: str) -> str:
    """A namespace that no client can declare."""
    return f"{kind}\0"


def offered_name(name: str, namespace: str | None, taken: Iterable[str]) -> str:
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
