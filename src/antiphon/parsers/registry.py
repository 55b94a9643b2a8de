"""Registry of parsers. An entry makes a parser selectable and includes it in the contract tests."""

from functools import cache
from importlib import import_module

from antiphon.errors import StartupError
from antiphon.parsers.base import Parser

PARSERS: dict[str, str] = {
    "chat": "antiphon.parsers.chat:ChatParser",
    "harmony": "antiphon.parsers.harmony:HarmonyParser",
    "raw": "antiphon.parsers.raw:RawParser",
    "unbroken chat": "antiphon.parsers.unescape:UnescapingChatParser",
    "unbroken raw": "antiphon.parsers.unescape:UnescapingRawParser",
}


@cache
def load_parser(name: str) -> type[Parser]:
    """Import the parser with this name on first use."""
    if name not in PARSERS:
        raise StartupError(f"There is no parser {name!r}; there are {', '.join(sorted(PARSERS))}.")
    module, _, attribute = PARSERS[name].partition(":")
    parser: type[Parser] = getattr(import_module(module), attribute)
    return parser
