"""Parses the arguments of a call written as literals, (a=1, b='x') or {a:1,b:<escape>x<escape>}, to a JSON object.

    ARGUMENT ──atom──▶ AFTER_NAME ──=──▶ VALUE ──▶ NEXT ──,──▶ ARGUMENT … ──closer──▶ DONE
    KEY ──atom, string──▶ COLON ──▶ VALUE ──▶ NEXT ──,──▶ KEY …               (within braces)
    VALUE ──quote──▶ STRING ──quote──▶ AFTER_STRING ──▶ NEXT       (adjacent strings are joined; a quote that
                      ▲                  └──no end of a value──▶ STRING       ends no value is part of the string)

An atom is a token without quotes: a name, a number or a constant. Input that is not a literal leads to BROKEN: nothing
more is written, and the JSON stays incomplete, so that partial arguments are not taken for complete ones.
"""

import json
from enum import IntEnum
from typing import Final

from msgspec import Struct

from antiphon.core.stop_strings import measure_overlap
from antiphon.parsers.calls.delimited_calls import BufferRule, ValueBudget, skip_space
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


MAX_DEPTH: Final = 64
_CLOSERS: Final = {"[": "]", "(": ")", "{": "}"}


class JsonLevel(Struct):
    """One open bracket. `closer` is the closing bracket in the source syntax."""

    closer: str
    is_list: bool
    opened: bool = False
    used: bool = False  # it contains a value


class JsonWriter:
    """Writes nested lists and objects incrementally and collects the output; the outermost level is an object.

    Commas, names and brackets are written only when a value follows, so the JSON can be closed at any time.
    """

    def __init__(self, closer: str) -> None:
        self.levels = [JsonLevel(closer, is_list=False)]  # the innermost last
        self._pending_name = ""  # name whose value has not been written yet, as a JSON string
        self._out: list[str] = []
        self.has_output = False  # the input begins as arguments do: with a value, or with the closer

    def take_output(self) -> str:
        """Return the JSON written since the last call."""
        output = "".join(self._out)
        self._out.clear()
        return output

    def write(self, piece: str) -> None:
        self._out.append(piece)

    def set_name(self, name: str) -> None:
        """Set the name of the next value, as a JSON string."""
        self._pending_name = name

    def convert_name_to_value(self, value: str) -> None:
        """Turn the open level into a list: what looked like a name is the first value of a set."""
        self._pending_name = ""
        self.levels[-1].is_list = True
        self.write_item(value)

    def write_item(self, value: str) -> None:
        level = self.levels[-1]
        if level.used:
            self._out.append(",")
        level.used = True
        if not level.opened:
            self._write_opener(level)
        if self._pending_name:
            self._out.append(self._pending_name + ":")
            self._pending_name = ""
        self._out.append(value)

    def open_level(self, opener: str) -> None:
        self.write_item("")
        self.levels.append(JsonLevel(_CLOSERS[opener], opener != "{"))

    def close_level(self) -> None:
        level = self.levels.pop()
        if not level.opened:
            self._write_opener(level)
        self._out.append("]" if level.is_list else "}")

    def _write_opener(self, level: JsonLevel) -> None:
        level.opened = self.has_output = True
        self._out.append("[" if level.is_list else "{")


class LiteralState(IntEnum):
    """State of a `LiteralReader`; the transitions are drawn above."""

    ARGUMENT = 0
    AFTER_NAME = 1
    KEY = 2
    COLON = 3
    VALUE = 4
    NEXT = 5
    AFTER_STRING = 6
    STRING = 7
    ATOM = 8
    DONE = 9
    BROKEN = 10


# module globals: faster to look up on the token path
ARGUMENT, AFTER_NAME, KEY, COLON, VALUE, NEXT, AFTER_STRING, STRING, ATOM, DONE, BROKEN = LiteralState


_OPENERS: Final = frozenset({"[", "{", "("})
_MAX_SHORT_LENGTH: Final = 64
MAX_ATOM_LENGTH: Final = 1024
_STRING_PREFIXES: Final = frozenset({"r", "u", "b", "f", "rb", "br", "rf", "fr"})
_ASSIGNMENT_CHARS: Final = frozenset(":=")
_AFTER_STRING_CHARS: Final = frozenset({",", ")", "]", "}", ":"})
_OPERATORS: Final = frozenset("+%*")  # a computed string is not a literal


class LiteralReader:
    """Reads the arguments of one call, starting after the opener."""

    def __init__(self, syntax: LiteralSyntax, parameters: ToolParameters, budget: ValueBudget) -> None:
        self._syntax = syntax
        self._parameters = parameters
        self._budget = budget
        self._outermost = ARGUMENT if syntax.is_python else KEY
        self._state = self._outermost
        self.writer = JsonWriter(syntax.closer)
        self._levels = self.writer.levels
        self._role = self._state  # state in which the current atom or string began
        self._atom: list[str] = []
        self._atom_length = 0  # characters of the atom so far
        self._quote = ""
        self._gap: list[str] = []  # whitespace after a string
        self._is_raw = False  # raw string: backslashes are literal
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
        if self._state is not STRING or self._role is KEY or self._value is not None:
            return ""
        return "" if self._quote[0] in text or (self._syntax.is_python and "\\" in text) else escape_json(text)

    def get_buffer_rule(self) -> BufferRule:
        """Return the buffering rule: values are buffered until they end, strings are streamed once they have begun."""
        is_streaming = self._state is AFTER_STRING or (self._state is STRING and self._role is not KEY)
        return self._syntax.string_rule if is_streaming else self._syntax.value_rule

    def feed(self, text: str, at: int) -> tuple[int, bool]:
        """Return the position reached and whether parsing continues there; if not, the rest is fed again with more
        text.
        """
        more, end = True, len(text)
        while more and at < end:
            state = self._state
            if state is STRING:
                at, more = self._read_string(text, at)
            elif state is ATOM:
                at = self._read_atom(text, at)
            elif state is AFTER_STRING:
                at, more = self._continue_string(text, at)
            elif state is DONE or state is BROKEN:
                break
            elif text[at].isspace():
                at = skip_space(text, at)
            else:
                at, more = self._step(text, at)
        return at, more

    def finish(self) -> str:
        """Return the JSON that completes the object. A name without a value, a partial quote and a partial escape are
        dropped.
        """
        if self._state is STRING and self._role is not KEY:
            self.writer.write('"' if self._value is None else self._value.finish(cut=True))
        elif self._state is AFTER_STRING:
            self.writer.write('"')
        elif self._state is ATOM and self._role is VALUE:
            self._end_atom("")
        while self._levels:
            self.writer.close_level()
        return self.writer.take_output()

    # Punctuation.

    def _step(self, text: str, at: int) -> tuple[int, bool]:
        char, state, level = text[at], self._state, self._levels[-1]
        if state is ARGUMENT and len(text) - at < _MAX_SHORT_LENGTH and text[at:].isidentifier():
            return at, False  # the name may be incomplete
        if state is NEXT:
            return self._read_separator(char, at)
        if state is AFTER_NAME or state is COLON:
            return self._read_assignment(char, at)
        if char == level.closer:
            return self._reject(at) if state is VALUE and not level.is_list else self._close_level(at)
        return self._start_value(text, at)

    def _read_separator(self, char: str, at: int) -> tuple[int, bool]:
        level = self._levels[-1]
        if char == level.closer:
            return self._close_level(at)
        if char != ",":
            return self._reject(at)
        if len(self._levels) == 1:
            self._state = self._outermost
        else:
            self._state = VALUE if level.is_list else KEY
        return at + 1, True

    def _read_assignment(self, char: str, at: int) -> tuple[int, bool]:
        after_name = self._state is AFTER_NAME
        if char not in _ASSIGNMENT_CHARS:
            return self._write_positional(char, at) if after_name else self._convert_to_set(char, at)
        self._state = VALUE
        if after_name:
            self._set_name(self._atom[0])
        return at + 1, True

    def _convert_to_set(self, char: str, at: int) -> tuple[int, bool]:
        """Handle {1, 2}: what looked like a key is a value of a set."""
        level = self._levels[-1]
        if level.used or len(self._levels) == 1 or (char != "," and char != level.closer):
            return self._reject(at)
        atom = "".join(self._atom)
        self.writer.convert_name_to_value(f'"{atom}"' if self._quote else atom_to_json(atom))
        self._state = NEXT
        return at, True

    def _reject(self, at: int) -> tuple[int, bool]:
        self._state = BROKEN
        return at, True

    def _close_level(self, at: int) -> tuple[int, bool]:
        self.writer.close_level()
        self._state = NEXT if self._levels else DONE
        return at + 1, True

    # Starts of values.

    def _start_value(self, text: str, at: int) -> tuple[int, bool]:
        quote = self._syntax.find_quote(text, at)
        if quote is None:
            return at, False
        if not quote and text[at] in NUMBER_STARTS and self._state is VALUE and self._levels[-1].is_list:
            run, end = read_number_run(text, at)
            if run:
                self.writer.write_item(run)
                return end, True
        if not self._budget.take():
            return self._reject(at)
        if quote:
            return self._start_string(text, quote, at)
        if text[at] in _OPENERS and self._state is not KEY:
            return self._open_level(text, at)
        if text[at] in self._syntax.key_ends:
            return self._reject(at)
        self._role, self._state = self._state, ATOM
        self._atom.clear()
        self._atom_length = 0
        return self._read_atom(text, at), True

    def _open_level(self, text: str, at: int) -> tuple[int, bool]:
        if len(self._levels) >= MAX_DEPTH or not self._ensure_name():
            return self._reject(at)
        self.writer.open_level(text[at])
        self._state = KEY if text[at] == "{" else VALUE
        return at + 1, True

    def _set_name(self, name: str) -> None:
        """Set the name of the next value; a duplicate argument name is an error."""
        self.writer.set_name(to_json_string(name))
        if len(self._levels) > 1:
            return
        if not self._syntax.is_python:
            self._types = self._parameters.get_types(name)
        if name in self._seen_names:
            self._state = BROKEN
        self._seen_names.add(name)

    def _ensure_name(self) -> bool:
        """Give a positional argument the next unused name of the schema. Returns False if there is none."""
        if self._state is not ARGUMENT:
            return True
        name = next((name for name in self._parameters.names if name not in self._seen_names), None)
        if name is not None:
            self._set_name(name)
        return name is not None

    # Strings.

    def _start_string(self, text: str, quote: str, at: int) -> tuple[int, bool]:
        if not self._ensure_name():
            return self._reject(at)
        self._quote, self._role, self._state = quote, self._state, STRING
        if self._role is KEY:
            self._atom.clear()
            return at + len(quote), True
        types = self._types
        if not self._syntax.is_python and len(self._levels) == 1 and types is not ANY and "string" not in types:
            self._value = TypedValue(types)
        self.writer.write_item('"' if self._value is None else "")
        return at + len(quote), True

    def _read_string(self, text: str, at: int) -> tuple[int, bool]:
        quote = self._quote
        if self._syntax.is_python:
            end, is_closed = find_string_end(text, at, quote)
        else:
            end = text.find(quote, at)
            is_closed = end >= 0
            end = end if is_closed else max(at, len(text) - measure_overlap(text, quote))
        self._write_string(text[at:end])
        if not is_closed:
            return end, False
        self._end_string()
        return end + len(quote), True

    def _write_string(self, text: str) -> None:
        if self._value is not None:
            self.writer.write(self._value.feed(text))
            return
        plain = self._is_raw or not self._syntax.is_python
        escaped = escape_json(text) if plain else string_to_json(text)
        if self._role is KEY:
            self._atom.append(escaped)
        else:
            self.writer.write(escaped)

    def _end_string(self) -> None:
        if self._role is KEY:
            self._state = COLON
            key = "".join(self._atom)
            if len(self._levels) == 1:
                self._set_name(json.loads(f'"{key}"'))
            self.writer.set_name(f'"{key}"')
        elif self._syntax.is_python:
            self._state = AFTER_STRING
            self._gap.clear()
        else:
            self.writer.write('"' if self._value is None else self._value.finish())
            self._value = None
            self._state = NEXT

    def _continue_string(self, text: str, at: int) -> tuple[int, bool]:
        """Decide from the text after a quote whether the quote has ended the string."""
        begin = skip_space(text, at)
        self._gap.append(text[at:begin])
        if begin == len(text):
            return begin, False
        char = text[begin]
        if char in _AFTER_STRING_CHARS:
            self.writer.write('"')
            self._is_raw = False
            self._state = NEXT
            return begin, True
        quote = self._syntax.find_quote(text, begin)
        if quote is None:
            return begin, False
        if char in _OPERATORS or not self._budget.take():
            return self._reject(begin)
        self._state = STRING
        if quote:
            self._quote = quote
        else:
            self.writer.write(escape_json(self._quote + "".join(self._gap)))
        return begin + len(quote), True

    # Atoms.

    def _read_atom(self, text: str, at: int) -> int:
        ends = self._syntax.atom_ends if self._role is VALUE else self._syntax.key_ends
        end, limit = at, min(len(text), at + MAX_ATOM_LENGTH + 1 - self._atom_length)
        while end < limit and text[end] not in ends:
            end += 1
        self._atom.append(text[at:end])
        self._atom_length += end - at
        if self._atom_length > MAX_ATOM_LENGTH:
            self._state = BROKEN
        elif end < len(text):
            self._end_atom(text[end])
        return end

    def _end_atom(self, following: str) -> None:
        atom = "".join(self._atom).strip()
        self._atom = [atom]
        self._quote = ""
        if self._role is ARGUMENT:
            self._state = AFTER_NAME
        elif self._role is KEY:
            self._state = COLON
            self._set_name(PYTHON_CONSTANTS.get(atom, atom))
        else:
            self._write_atom(atom, following)

    def _write_positional(self, following: str, at: int) -> tuple[int, bool]:
        """Write an atom that is a positional argument."""
        self._state = ARGUMENT
        if not self._ensure_name():
            return self._reject(at)
        self._write_atom(self._atom[0], following)
        return at, True

    def _write_atom(self, atom: str, following: str) -> None:
        """Write an atom, or note a string prefix such as r."""
        if self._syntax.is_python and following in self._syntax.quote_chars and atom.lower() in _STRING_PREFIXES:
            self._is_raw = "r" in atom.lower()
            self._state = VALUE
            return
        types = self._types if len(self._levels) == 1 else ANY
        if is_plain_number(atom):
            self._budget.remaining += 1
            self.writer.write_item(to_json_string(atom) if types == TEXT and not self._syntax.is_python else atom)
        else:
            self.writer.write_item(atom_to_json(atom) if self._syntax.is_python else to_json(atom, types))
        self._state = NEXT
