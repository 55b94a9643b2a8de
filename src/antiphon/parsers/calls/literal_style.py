"""Syntax of the literals of a family, and the number of literals that an answer may have."""

from typing import Final

from msgspec import Struct

from antiphon.parsers.calls.delimited_calls import BufferRule

MAX_VALUES: Final = 320  # per answer; plain numbers do not count


class LiteralSyntax(Struct, frozen=True, kw_only=True):
    """Syntax of literals. In Python, names are followed by = and may be omitted, and strings have escapes."""

    opener: str = "("
    closer: str = ")"
    quotes: tuple[str, ...] = ('"""', "'''", '"', "'")  # longer ones first
    key_ends: frozenset[str] = frozenset(" \t\r\n,()[]{}:=\"'<")  # `<` ends a key too: a marker may begin there
    atom_ends: frozenset[str] = key_ends
    value_rule: BufferRule = BufferRule(frozenset(")]}\n"))  # until a value ends, or a line that is not a call
    string_rule: BufferRule = BufferRule()  # inside a string
    quote_chars: frozenset[str] = frozenset("\"'")  # first characters of the quotes
    is_python: bool = True

    def find_quote(self, text: str, at: int) -> str | None:
        """Return the quote that begins here, "" for none; None if the text may still become a quote, or a longer
        one.
        """
        if text[at] not in self.quote_chars:
            return ""
        if self.is_python and text[at + 1 : at + 2] not in ("", text[at]):
            return text[at]
        for quote in self.quotes:
            if text.startswith(quote, at):
                return quote
            if len(text) - at < len(quote) and quote.startswith(text[at:]):
                return None
        return ""


class LiteralBudget:
    """Limits for one answer."""

    def __init__(self) -> None:
        self.remaining = MAX_VALUES

    @property
    def is_exhausted(self) -> bool:
        return self.remaining <= 0

    def take(self) -> bool:
        """Count one more value. Returns False once the budget is used up."""
        self.remaining -= 1
        return self.remaining > 0
