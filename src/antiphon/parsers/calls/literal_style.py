"""How a family writes literals, and how many of them an answer may have."""

from typing import Final

from msgspec import Struct

from antiphon.parsers.calls.delimited_calls import Wait
from antiphon.parsers.calls.python_strings import Escapes

MOST_VALUES: Final = 320  # in an answer; plain numbers do not count


class Script(Struct, frozen=True, kw_only=True):
    """How literals are written. In Python an = follows a name, names may be left out, and strings have escapes."""

    opener: str = "("
    closer: str = ")"
    quotes: tuple[str, ...] = ('"""', "'''", '"', "'")  # the longer ones first
    key_ends: frozenset[str] = frozenset(" \t\r\n,()[]{}:=\"'<")  # also a mark ends it
    word_ends: frozenset[str] = key_ends
    waits: Wait = Wait(frozenset(")]}\n"))  # for the end of values, or a line that is no call
    flows: Wait = Wait()  # in a string
    firsts: frozenset[str] = frozenset("\"'")  # of the quotes
    python: bool = True

    def quote_at(self, text: str, at: int) -> str | None:
        """The quote that begins here; None: it may become one, or a longer one."""
        if text[at] not in self.firsts:
            return ""
        if self.python and text[at + 1 : at + 2] not in ("", text[at]):
            return text[at]
        for quote in self.quotes:
            if text.startswith(quote, at):
                return quote
            if len(text) - at < len(quote) and quote.startswith(text[at:]):
                return None
        return ""


class Budget:
    """Of an answer."""

    def __init__(self) -> None:
        self.left = MOST_VALUES
        self.escapes = Escapes()

    @property
    def spent(self) -> bool:
        return self.left <= 0

    def take(self) -> bool:
        """One more value; whether there is one left."""
        self.left -= 1
        return self.left > 0
