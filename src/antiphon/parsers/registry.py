"""The parsers there are. A line here makes a parser selectable and puts it under the contract suite."""

from functools import cache
from importlib import import_module

from antiphon.errors import StartupError
from antiphon.parsers.base import Parser

PARSERS: dict[str, str] = {
    "chat": "antiphon.parsers.chat:ChatParser",
    "harmony": "antiphon.parsers.harmony.parser:HarmonyParser",
    "raw": "antiphon.parsers.raw:RawParser",
    "unbroken chat": "antiphon.parsers.unescape:UnbrokenChat",
    "unbroken raw": "antiphon.parsers.unescape:UnbrokenRaw",
}


@cache
def load_parser(name: str) -> type[Parser]:
    """Imported when it is first asked for."""
    if name not in PARSERS:
        raise StartupError(f"There is no parser {name!r}; there are {', '.join(sorted(PARSERS))}.")
    module, _, attribute = PARSERS[name].partition(":")
    parser: type[Parser] = getattr(import_module(module), attribute)
    return parser
