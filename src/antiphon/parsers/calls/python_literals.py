"""Parses the arguments of a call written as literals, (a=1, b='x') or {a:1,b:<escape>x<escape>}, to a JSON object.

    NAME ──a name and = or :──▶ VALUE ──▶ NEXT ──,──▶ NAME, or VALUE in a list … ──closer──▶ DONE
    VALUE ──quote──▶ STRING ──quote──▶ AFTER_STRING ──▶ NEXT       (adjacent strings are joined; a quote that
                      ▲                  └──no end of a value──▶ STRING       ends no value is part of the string)

An atom is a token without quotes: a name, a number or a constant. Names and atoms are read once they have arrived
completely; strings are streamed. Input that is not a literal leads to BROKEN: nothing more is written, and the JSON
stays incomplete, so that partial arguments are not taken for complete ones.
"""

import re
from enum import IntEnum
from typing import Final

from msgspec import Struct

from antiphon.core.stop_strings import measure_overlap
from antiphon.parsers.calls.delimited_calls import BufferRule, ValueBudget
from antiphon.parsers.calls.typed_values import (
    ANY,
    NUMBER_STARTS,
    PYTHON_CONSTANTS,
    TEXT,
    ToolParameters,
    TypedValue,
    atom_to_json,
    escape_json,
    find_string_end,
    is_plain_number,
    read_number_run,
    string_to_json,
    to_json,
    to_json_string,
)
from antiphon.parsers.json_repair import match_end, skip_space

_PYTHON_ATOM: Final = re.compile(r"""[^ \t\r\n,()\[\]{}:="'<]*+""")  # `<` ends it too: a marker may begin there


class LiteralSyntax(Struct, frozen=True, kw_only=True):
    """Syntax of literals. In Python, names are followed by = and may be omitted, and strings have escapes."""

    prefix: str = ""  # text before the name of a call
    opener: str = "("
    closer: str = ")"
    quotes: tuple[str, ...] = ('"""', "'''", '"', "'")  # longer ones first
    name: re.Pattern[str] = _PYTHON_ATOM
    atom: re.Pattern[str] = _PYTHON_ATOM
    value_rule: BufferRule = BufferRule(frozenset(")]}\n"))  # until a value ends, or a line that is not a call
    string_rule: BufferRule = BufferRule()  # inside a string
    quote_chars: frozenset[str] = frozenset("\"'")  # first characters of the quotes
    is_python: bool = True

    def find_quote(self, text: str, at: int) -> str | None:
        """Return the quote that begins here, "" for none; None if more text may make it a quote or a longer one."""
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

    def find_string_end(self, text: str, at: int, quote: str) -> tuple[int, bool]:
        """Return the position of the closing quote and True; for an open string its complete end and False."""
        if self.is_python:
            return find_string_end(text, at, quote)
        end = text.find(quote, at)
        return (end, True) if end >= 0 else (max(at, len(text) - measure_overlap(text, quote)), False)


class LiteralState(IntEnum):
    """State of a `LiteralReader`; the transitions are drawn above."""

    NAME = 0
    VALUE = 1
    NEXT = 2
    AFTER_STRING = 3
    STRING = 4
    DONE = 5
    BROKEN = 6


# module globals: faster to look up on the token path
NAME, VALUE, NEXT, AFTER_STRING, STRING, DONE, BROKEN = LiteralState

MAX_DEPTH: Final = 64
MAX_ATOM_LENGTH: Final = 1024  # also of a name, with the white space after it
_CLOSERS: Final = {"[": "]", "(": ")", "{": "}"}
_STRING_PREFIXES: Final = frozenset({"r", "u", "b", "f", "rb", "br", "rf", "fr"})
_AFTER_STRING_CHARS: Final = frozenset({",", ")", "]", "}", ":"})
_OPERATORS: Final = frozenset("+%*")  # a computed string is not a literal


class _Level(Struct):
    """One open bracket. `closer` is the closing bracket in the source syntax."""

    closer: str
    is_list: bool
    used: bool = False  # it contains a value, before which the opening bracket was written


class LiteralReader:
    """Reads the arguments of one call, starting after the opener.

    Commas, names and opening brackets are written only when a value follows, so the JSON can be closed at any time.
    """

    def __init__(self, syntax: LiteralSyntax, parameters: ToolParameters, budget: ValueBudget) -> None:
        self._syntax = syntax
        self._parameters = parameters
        self._budget = budget
        self._state = NAME
        self._levels = [_Level(syntax.closer, is_list=False)]  # the innermost last
        self._out: list[str] = []
        self._name = ""  # name whose value has not been written yet, as JSON with a colon
        self._quote = ""
        self._gap: list[str] = []  # whitespace after a string
        self._is_raw = not syntax.is_python  # backslashes in the string are literal
        self._value: TypedValue | None = None  # converts a string for which the schema gives another type
        self._types = ANY  # of the value at the outermost level
        self._seen_names: set[str] = set()

    @property
    def is_done(self) -> bool:
        return self._state is DONE

    @property
    def is_broken(self) -> bool:
        return self._state is BROKEN

    def feed_string(self, text: str) -> str:
        """Return the JSON that this text adds to the open string; "" if the text must go through `feed`."""
        if self._state is not STRING or self._value is not None:
            return ""
        return "" if self._quote[0] in text or (self._syntax.is_python and "\\" in text) else escape_json(text)

    def get_buffer_rule(self) -> BufferRule:
        """Return the buffering rule: values are buffered until they end, strings are streamed once they have begun."""
        is_streaming = self._state is STRING or self._state is AFTER_STRING
        return self._syntax.string_rule if is_streaming else self._syntax.value_rule

    def feed(self, text: str, at: int) -> tuple[int, bool]:
        """Return the position reached and whether parsing continues there; else the rest comes with more text."""
        more, end = True, len(text)
        while more and at < end:
            state = self._state
            if state is STRING:
                at, more = self._read_string(text, at)
            elif state is AFTER_STRING:
                at, more = self._continue_string(text, at)
            elif state is DONE or state is BROKEN:
                break
            elif text[at].isspace():
                at = skip_space(text, at)
            else:
                at, more = self._step(text, at)
        return at, more

    def finish(self, pending: str) -> str:
        """Return the JSON that completes the object. Names without values and partial quotes or escapes are dropped."""
        if self._state is STRING:
            self._out.append('"' if self._value is None else self._value.finish(cut=True))
        elif self._state is AFTER_STRING:
            self._out.append('"')
        elif self._state is VALUE and match_end(self._syntax.atom, pending, 0):
            self._write_atom(pending.strip())
        while self._levels:
            self._close_level()
        return self.take_output()

    def take_output(self) -> str:
        """Return the JSON written since the last call."""
        output = "".join(self._out)
        self._out.clear()
        return output

    # Punctuation and names.

    def _step(self, text: str, at: int) -> tuple[int, bool]:
        char, state, level = text[at], self._state, self._levels[-1]
        if char == level.closer and (state is not VALUE or level.is_list):
            self._close_level()
            self._state = NEXT if self._levels else DONE
            return at + 1, True
        if state is NAME:
            return self._read_name(text, at)
        if state is VALUE:
            return self._read_value(text, at)
        if char != ",":
            return self._reject(at)
        self._state = VALUE if level.is_list else NAME
        return at + 1, True

    def _read_name(self, text: str, at: int) -> tuple[int, bool]:
        """Read a name and the character after it, which shows whether it is a name."""
        syntax, is_argument = self._syntax, self._syntax.is_python and len(self._levels) == 1
        quote = "" if is_argument else syntax.find_quote(text, at)
        if quote is None:
            return at, False
        begin = at + len(quote)
        if quote:
            end, is_complete = syntax.find_string_end(text, begin, quote)
        else:
            end = match_end(syntax.name, text, at)
            is_complete = end < len(text)
        after = skip_space(text, end + len(quote)) if is_complete else len(text)
        if after - at > MAX_ATOM_LENGTH:
            return self._reject(at)
        if after == len(text):
            return at, False
        if text[after] in ":=" and after > at:
            self._state = VALUE if self._budget.take() else BROKEN
            self._set_name(text[begin:end], bool(quote))
            return after + 1, True
        self._state = VALUE
        is_unnamed = self._name_positional() if is_argument else after > at and self._convert_to_set(text[after])
        return (at, True) if is_unnamed else self._reject(at)

    def _set_name(self, name: str, is_quoted: bool = False) -> None:
        """Set the name of the next value; a duplicate argument name is an error."""
        if not is_quoted:
            name = PYTHON_CONSTANTS.get(name.strip(), name.strip())
        is_escaped = is_quoted and self._syntax.is_python
        self._name = f'"{string_to_json(name)}":' if is_escaped else f"{to_json_string(name)}:"
        if len(self._levels) == 1:
            if not self._syntax.is_python:
                self._types = self._parameters.get_types(name)
            if name in self._seen_names:
                self._state = BROKEN
            self._seen_names.add(name)

    def _name_positional(self) -> bool:
        """Give a positional argument the next unused name of the schema. Returns False if there is none."""
        name = next((name for name in self._parameters.names if name not in self._seen_names), None)
        if name is not None:
            self._set_name(name)
        return name is not None

    def _convert_to_set(self, following: str) -> bool:
        """Turn the open level into a list if this is the first value of a set: {1, 2}."""
        level = self._levels[-1]
        level.is_list = not level.used and len(self._levels) > 1 and following in (",", level.closer)
        return level.is_list

    def _reject(self, at: int) -> tuple[int, bool]:
        self._state = BROKEN
        return at, True

    def _close_level(self) -> None:
        level = self._levels.pop()
        brackets = "[]" if level.is_list else "{}"
        self._out.append(brackets[1] if level.used else brackets)

    # Values.

    def _read_value(self, text: str, at: int) -> tuple[int, bool]:
        if (quote := self._syntax.find_quote(text, at)) is None:
            return at, False
        if quote:
            return self._start_string(quote, at)
        if text[at] in NUMBER_STARTS and self._levels[-1].is_list:
            run, end = read_number_run(text, at)
            if run:
                self._write_item(run)
                return end, True
        return self._open_level(text, at) if text[at] in _CLOSERS else self._read_atom(text, at)

    def _write_item(self, value: str) -> None:
        level = self._levels[-1]
        self._out += ("," if level.used else "[" if level.is_list else "{", self._name, value)
        level.used = True
        self._name = ""

    def _open_level(self, text: str, at: int) -> tuple[int, bool]:
        if len(self._levels) >= MAX_DEPTH or not self._budget.take():
            return self._reject(at)
        self._write_item("")
        self._levels.append(_Level(_CLOSERS[text[at]], text[at] != "{"))
        self._state = NAME if text[at] == "{" else VALUE
        return at + 1, True

    def _read_atom(self, text: str, at: int) -> tuple[int, bool]:
        """Read an atom, or a string prefix such as r."""
        end = match_end(self._syntax.atom, text, at)
        if end == at or end - at > MAX_ATOM_LENGTH:
            return self._reject(at)
        if end == len(text):
            return at, False
        atom = text[at:end].strip()
        if self._syntax.is_python and text[end] in self._syntax.quote_chars and atom.lower() in _STRING_PREFIXES:
            self._is_raw = "r" in atom.lower()
        else:
            self._write_atom(atom)
        return end, True

    def _write_atom(self, atom: str) -> None:
        types = self._types if len(self._levels) == 1 else ANY
        self._state = NEXT
        if is_plain_number(atom):
            self._write_item(to_json_string(atom) if types == TEXT else atom)
        elif self._budget.take():
            self._write_item(atom_to_json(atom) if self._syntax.is_python else to_json(atom, types))
        else:
            self._state = BROKEN

    # Strings.

    def _start_string(self, quote: str, at: int) -> tuple[int, bool]:
        if not self._budget.take():
            return self._reject(at)
        self._quote, self._state = quote, STRING
        if len(self._levels) == 1 and self._types is not ANY and "string" not in self._types:
            self._value = TypedValue(self._types)
        self._write_item('"' if self._value is None else "")
        return at + len(quote), True

    def _read_string(self, text: str, at: int) -> tuple[int, bool]:
        end, is_closed = self._syntax.find_string_end(text, at, self._quote)
        if self._value is not None:
            self._out.append(self._value.feed(text[at:end]))
        else:
            self._out.append(escape_json(text[at:end]) if self._is_raw else string_to_json(text[at:end]))
        if not is_closed:
            return end, False
        if self._syntax.is_python:
            self._state = AFTER_STRING
            self._gap.clear()
        else:
            self._out.append('"' if self._value is None else self._value.finish())
            self._value = None
            self._state = NEXT
        return end + len(self._quote), True

    def _continue_string(self, text: str, at: int) -> tuple[int, bool]:
        """Decide from the text after a quote whether the quote has ended the string."""
        begin = skip_space(text, at)
        self._gap.append(text[at:begin])
        if begin == len(text):
            return begin, False
        char = text[begin]
        if char in _AFTER_STRING_CHARS:
            self._out.append('"')
            self._is_raw = False
            self._state = NEXT
            return begin, True
        if (quote := self._syntax.find_quote(text, begin)) is None:
            return begin, False
        if char in _OPERATORS or not self._budget.take():
            return self._reject(begin)
        self._state = STRING
        if quote:
            self._quote = quote
        else:
            self._out.append(escape_json(self._quote + "".join(self._gap)))
        return begin + len(quote), True
