"""Repairs one JSON value while it arrives, cut anywhere: valid JSON passes unchanged, unambiguous errors are repaired.

    VALUE ──{[──▶ KEY / VALUE ──"──▶ (string) ──▶ COLON / NEXT ──,──▶ KEY / VALUE …
      └──else──▶ (bareword, number) ──▶ NEXT ──}]──▶ NEXT, or DONE at the outermost level

Repairs: single and triple quotes, control characters, and backslashes that escape nothing (RFC 8259 §7) in strings;
strings without quotes, Python constants, surplus and missing commas, mismatched brackets, and a missing end. Input that
needs more is broken (`is_broken`), and reading stops there. A key and the comma before it are emitted when the value
begins, so that an end in between leaves no half-written member.
"""

import json
import re
from enum import IntEnum
from typing import Final

_SIMPLE_ESCAPES: Final = frozenset('"\\/bfnrt')
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_CONTROLS: Final = {chr(code): json.dumps(chr(code))[1:-1] for code in range(32)}
# By quote: content that is valid as it is, except for control characters. Single quotes may be followed by \", which is
# excluded because double quotes are escaped in the whole stretch.
_VALID_CONTENT: Final = {
    '"': re.compile(r'(?:[^"\\]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*'),
    "'": re.compile(r"(?:[^'\\]++|\\(?:[\\/bfnrt]|u[0-9a-fA-F]{4}))*"),
}
_LENIENT_DECODER: Final = json.JSONDecoder(strict=False)


class JsonStringRepair:
    """Repairs one string incrementally. `repairs` counts repaired escapes, because they cost time.

    Two quotes are an empty string, or begin a string in triple quotes, which models write around code.
    """

    def __init__(self) -> None:
        self._escape = ""  # incomplete escape
        self._is_empty = False  # nothing has followed the opening quote
        self._inner_quotes = 0  # in triple quotes: those that may belong to the end
        self.quote = ""  # empty: no string is being read
        self.repairs = 0

    def open(self, quote: str, out: list[str]) -> None:
        self.quote = quote
        self._is_empty = True
        out.append('"')

    @property
    def is_plain(self) -> bool:
        """Whether a double-quoted string is being read and no escape is pending."""
        return self.quote == '"' and not self._escape

    def can_pass(self, text: str) -> bool:
        """Return whether the text lies within the string and needs no change, the most frequent case."""
        return (
            self.quote == '"'
            and not self._escape
            and not self._is_empty
            and '"' not in text
            and "\\" not in text
            and (text.isprintable() or not any(map(_CONTROLS.__contains__, text)))
        )

    def feed(self, text: str, at: int, out: list[str]) -> int:
        """Read on and return the next position: after the string if it has ended, otherwise after some of it."""
        if self._escape:
            return self._continue_escape(text, at, out)
        if len(self.quote) > 1:
            return self._continue_triple(text, at, out)
        end = match_end(_VALID_CONTENT[self.quote], text, at)
        if end > at:
            self._is_empty = False
            self._emit(text[at:end], out)
        if end == len(text):
            return end
        if text[end] != self.quote:
            self._is_empty = False
            self._escape = "\\"
        elif self._is_empty:
            self.quote *= 2
        else:
            self.close(out)
        return end + 1

    def close(self, out: list[str]) -> None:
        """Close the string; an incomplete escape at the end of the output is dropped."""
        self._escape = self.quote = ""
        out.append('"')

    def _emit(self, part: str, out: list[str]) -> None:
        if not part.isprintable():
            part = _escape_controls(part)
        out.append(part.replace('"', '\\"') if self.quote == "'" else part)

    def _continue_triple(self, text: str, at: int, out: list[str]) -> int:
        """Read on after two quotes, or within triple quotes, where backslashes are literal as in the code."""
        quote = self.quote[0]
        if len(self.quote) == 2 and text[at] != quote:
            self.close(out)
            return at
        if text[at] == quote:
            self._read_triple_quote(quote, out)
            return at + 1
        end = text.find(quote, at)
        content = text[at:] if end < 0 else text[at:end]
        out.append(json.dumps(quote * self._inner_quotes + content, ensure_ascii=False)[1:-1])
        self._inner_quotes = 0
        return at + len(content)

    def _read_triple_quote(self, quote: str, out: list[str]) -> None:
        if len(self.quote) == 2:
            self.quote, self._inner_quotes = quote * 3, 0
        elif self._inner_quotes == 2:
            self.close(out)
        else:
            self._inner_quotes += 1

    def _continue_escape(self, text: str, at: int, out: list[str]) -> int:
        char, escape = text[at], self._escape
        if escape == "\\":
            return self._read_escape_kind(char, at, out)
        if char not in _HEX:
            self._escape = ""
            self.repairs += 1
            out.append("\\" + escape)
            return at
        self._escape += char
        if len(self._escape) == 6:
            out.append(self._escape)
            self._escape = ""
        return at + 1

    def _read_escape_kind(self, char: str, at: int, out: list[str]) -> int:
        self._escape = ""
        if char in _SIMPLE_ESCAPES:
            out.append("\\" + char)
        elif char == "u":
            self._escape = "\\u"
        else:
            self.repairs += 1
            out.append("'" if char == "'" else "\\\\")  # any other backslash is literal
            return at + (char == "'")
        return at + 1


def _escape_controls(text: str) -> str:
    for control, escaped in _CONTROLS.items():
        if control in text:
            text = text.replace(control, escaped)
    return text


def match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return the end of the match at this position."""
    found = pattern.match(text, at)
    return at if found is None else found.end()


class JsonStringDecoder:
    """Decodes the content of a valid JSON string, fed in pieces that split no escape."""

    def __init__(self) -> None:
        self._high_surrogate = ""  # escape that may be the first half of a surrogate pair

    @property
    def is_waiting(self) -> bool:
        """Whether the second half of a surrogate pair is pending."""
        return bool(self._high_surrogate)

    def feed(self, inside: str) -> str:
        if not self._high_surrogate and "\\" not in inside:
            return inside
        inside = self._high_surrogate + inside
        at = len(inside) - 6
        self._high_surrogate = inside[at:] if at >= 0 and _is_high_surrogate(inside, at) else ""
        text = str(_LENIENT_DECODER.decode(f'"{inside[:at] if self._high_surrogate else inside}"'))
        return text if text.isprintable() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _is_high_surrogate(inside: str, at: int) -> bool:
    if inside[at : at + 2] != "\\u" or inside[at + 2] not in "dD" or inside[at + 3] not in "89abAB":
        return False
    before = inside[:at]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 0


WHITESPACE: Final = " \t\n\r"
MAX_DEPTH: Final = 64
MAX_PARTS: Final = 8192  # commas, plus lists and objects by their weight
CONTAINER_WEIGHT: Final = 8  # cost of a list or an object in commas
MAX_REPAIRS: Final = 128
MAX_ESCAPE_REPAIRS: Final = 512  # repaired escapes in all strings together

_CLOSER_BY_OPENER: Final = {"{": "}", "[": "]", "(": "]"}  # the closing bracket of each, in JSON
_JSON_CLOSERS: Final = {"}": "}", "]": "]", ")": "]"}
_BAREWORD_ENDS: Final = " \t\n\r,:;{}[]()<>\"'`="
_BAREWORD: Final = re.compile(f"[^{re.escape(_BAREWORD_ENDS)}]*")
_JSON_SPACE: Final = re.compile(f"[{WHITESPACE}]*")
_SPACE: Final = re.compile(r"\s*+")
JSON_NUMBER: Final = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
_SCALAR: Final = f"true|false|null|{JSON_NUMBER}"
_JSON_SCALAR: Final = re.compile(_SCALAR)
_STRING: Final = r'"[^"\\\x00-\x1f]*+"'
# valid tokens that have arrived completely with the character after them, by the state VALUE or KEY
_TOKENS: Final = (re.compile(f"(?:{_STRING}|{_SCALAR})(?=[ \t\n\r,\\]}}])"), re.compile(rf"{_STRING}(?=[ \t\n\r:])"))
_PYTHON_LITERALS: Final = {"True": "true", "False": "false", "None": "null", "NaN": "null", "Infinity": "null"}
_CLEAR_STARTS: Final = frozenset("\"'{[")  # characters that clearly begin a value, even without a comma before them
_NUMBER_STARTS: Final = frozenset("-0123456789")


class RepairState(IntEnum):
    VALUE = 0
    KEY = 1
    COLON = 2
    NEXT = 3
    DONE = 4
    BROKEN = 5


VALUE, KEY, COLON, NEXT, DONE, BROKEN = RepairState  # module constants: faster than attribute access on the token path


class JsonRepair:
    def __init__(self) -> None:
        self._state = VALUE
        self._closers: list[str] = []  # closing brackets of the open containers, innermost last
        self._string = JsonStringRepair()
        self._is_key = False  # the string or bareword being read is a key
        self._bareword: list[str] = []
        self._pending: list[str] = []  # comma, key, colon and space: emitted only if a value follows
        self._repairs = 0
        self._parts = 0
        self._out: list[str] = []
        self._is_released = False  # input after an error is passed on unchanged

    @property
    def is_done(self) -> bool:
        return self._state is DONE

    @property
    def is_broken(self) -> bool:
        return self._state is BROKEN

    @property
    def is_finished(self) -> bool:
        """Whether the value is done or broken."""
        return self._state >= DONE

    @property
    def can_wait(self) -> bool:
        """Whether input may be buffered until a container or key ends; content of strings must pass at once."""
        return self._is_key or not self._string.quote

    def feed(self, text: str, at: int = 0) -> tuple[str, int]:
        """Return the JSON that this text adds and the position where reading stopped.

        That is the end of the text, the end of the value, or the position where the input is broken.
        """
        end, string = len(text), self._string
        if not at and self.can_pass(text):
            return text, end
        while at < end and self._state < DONE:
            if string.quote:
                at = self._continue_string(text, at)
            elif self._bareword:
                at = self._continue_bareword(text, at)
            elif self._state < COLON and (token := _TOKENS[self._state].match(text, at)) is not None:
                at = self._pass_token(token)
            else:
                at = self._read_structure(text, at)
        return self._take_output(), at

    def can_pass(self, text: str) -> bool:
        """Return whether the text lies within a string value and passes unchanged, the most frequent case."""
        return not self._is_key and self._string.can_pass(text)

    def finish(self) -> str:
        """Return the text that completes the value. If neither this nor `feed` returned text, there was no value."""
        if self._state is not DONE:
            if self._string.quote:
                self._string.close(self._pending if self._is_key else self._out)
            elif self._bareword and not self._is_key and _is_json_scalar("".join(self._bareword)):
                self._end_bareword()
            self._pending.clear()
            self._out += reversed(self._closers)
            self._state = DONE
        return self._take_output()

    def feed_or_release(self, text: str) -> str:
        """Return the JSON that this text adds; from an error on, all input is passed on unchanged."""
        if self._is_released:
            return text
        output, at = self.feed(text)
        if self._state is BROKEN:
            self._is_released = True
            output += self.release_pending() + text[at:]
        return output

    def release_pending(self) -> str:
        """Return the pending text; the caller passes all further input unchanged."""
        self._out += self._pending
        self._pending.clear()
        self._state = DONE
        return self._take_output()

    def _take_output(self) -> str:
        out = self._out
        text = out[0] if len(out) == 1 else "".join(out)
        out.clear()
        return text

    def _pass_token(self, token: re.Match[str]) -> int:
        """Pass a valid key, string, number or literal that has arrived completely."""
        if self._state is KEY:
            self._pending.append(token[0])
            self._state = COLON
        else:
            self._flush_pending()
            self._out.append(token[0])
            self._state = NEXT if self._closers else DONE
        return token.end()

    # Between values.

    def _read_structure(self, text: str, at: int) -> int:
        char = text[at]
        state = self._state
        if char in WHITESPACE:
            return self._read_space(text, at)
        if char == '"' and state < COLON:
            self._open_string(char)
        elif char == ":" and state is COLON:
            end = skip_whitespace(text, at + 1)
            self._pending.append(text[at:end])
            self._state = VALUE
            return end
        elif char == "," and state is NEXT:
            if self._parts >= MAX_PARTS:
                return self._set_broken(at)
            end = skip_whitespace(text, at + 1)
            self._add_comma(text[at:end])
            return end
        elif char in _JSON_CLOSERS:
            return self._close_container(_JSON_CLOSERS[char], at)
        else:
            return self._begin_value(text, at)
        return at + 1

    def _read_space(self, text: str, at: int) -> int:
        """Read white space; space before the value is dropped."""
        end = skip_whitespace(text, at)
        if self._closers:
            (self._pending if self._pending else self._out).append(text[at:end])
        return end

    def _add_comma(self, comma: str = ",") -> None:
        self._pending.append(comma)
        self._parts += 1
        self._state = KEY if self._closers[-1] == "}" else VALUE

    def _open_string(self, quote: str) -> None:
        self._is_key = self._state is KEY
        if not self._is_key:
            self._flush_pending()
        self._string.open(quote, self._pending if self._is_key else self._out)

    def _begin_value(self, text: str, at: int) -> int:
        """Begin a value other than a plain string: a container, a scalar, or input that needs repair."""
        char, state = text[at], self._state
        if state is NEXT:
            return self._repair_comma(char, at)
        if state is COLON:
            return self._repair_colon(char, at)
        if char == "'":
            self._open_string(char)
            return self._count_repair(state, at + 1)
        if char in _CLOSER_BY_OPENER and state is VALUE:
            return self._open_container(char, at)
        if char == "," and self._closers:
            return self._count_repair(state, at + 1)  # surplus comma
        return self._begin_bareword(text, at)

    def _repair_colon(self, char: str, at: int) -> int:
        if char != "=":
            return self._set_broken(at)
        self._pending.append(":")
        return self._count_repair(VALUE, at + 1)

    def _begin_bareword(self, text: str, at: int) -> int:
        char = text[at]
        if char in _BAREWORD_ENDS or not (char in _NUMBER_STARTS or self._closers or char.isalpha()):
            return self._set_broken(at)
        self._is_key = self._state is KEY
        return self._continue_bareword(text, at)

    def _repair_comma(self, char: str, at: int) -> int:
        if char not in _CLEAR_STARTS or (char in "{[" and self._closers[-1] == "}"):
            return self._set_broken(at)
        self._add_comma()
        return self._count_repair(self._state, at)

    def _open_container(self, char: str, at: int) -> int:
        self._parts += CONTAINER_WEIGHT
        if len(self._closers) >= MAX_DEPTH or self._parts > MAX_PARTS:
            return self._set_broken(at)
        self._flush_pending()
        self._closers.append(_CLOSER_BY_OPENER[char])
        self._out.append("{" if char == "{" else "[")
        self._state = KEY if char == "{" else VALUE
        return at + 1 if char != "(" else self._count_repair(self._state, at + 1)

    def _close_container(self, closer: str, at: int) -> int:
        """Close the innermost container of this kind and all containers within it."""
        closers = self._closers
        if closer not in closers or self._state is COLON:
            return self._set_broken(at)
        fits = closers[-1] == closer
        if self._pending:
            fits = False
            if self._state is VALUE and closers[-1] == "}":
                self._pending.append("null")  # key without a value
                self._flush_pending()
            self._pending.clear()
        while True:
            last = closers.pop()
            self._out.append(last)
            if last == closer:
                break
        self._state = NEXT if closers else DONE
        return at + 1 if fits else self._count_repair(self._state, at + 1)

    def _flush_pending(self) -> None:
        if self._pending:
            self._out += self._pending
            self._pending.clear()

    def _count_repair(self, state: RepairState, at: int) -> int:
        """Count a repair and continue in this state; beyond the limit the input is broken."""
        self._repairs += 1
        self._state = state if self._repairs <= MAX_REPAIRS or state is DONE else BROKEN
        return at

    def _set_broken(self, at: int) -> int:
        self._state = BROKEN
        return at

    def _end_value(self) -> None:
        if self._is_key:
            self._state = COLON
        else:
            self._state = NEXT if self._closers else DONE

    # Within a string, a bareword or a number.

    def _continue_string(self, text: str, at: int) -> int:
        string = self._string
        at = string.feed(text, at, self._pending if self._is_key else self._out)
        if not string.quote:
            self._end_value()
        elif string.repairs > MAX_ESCAPE_REPAIRS:
            self._state = BROKEN
        return at

    def _continue_bareword(self, text: str, at: int) -> int:
        end = match_end(_BAREWORD, text, at)
        self._bareword.append(text[at:end])
        if end < len(text):
            self._end_bareword()
        return end

    def _end_bareword(self) -> None:
        bareword = self._bareword[0] if len(self._bareword) == 1 else "".join(self._bareword)
        self._bareword.clear()
        encoded = json.dumps(bareword, ensure_ascii=False) if self._is_key else bareword_to_json(bareword)
        if not self._is_key:
            self._flush_pending()
        (self._pending if self._is_key else self._out).append(encoded)
        self._end_value()
        if encoded is not bareword:
            self._count_repair(self._state, 0)


def skip_whitespace(text: str, at: int) -> int:
    """Return the position of the next character that is not white space in JSON."""
    return match_end(_JSON_SPACE, text, at)


def skip_space(text: str, at: int) -> int:
    """Return the position of the next character that is not white space in Unicode."""
    return match_end(_SPACE, text, at)


def bareword_to_json(text: str) -> str:
    """Convert an unquoted string to JSON: JSON scalars are unchanged, Python constants mapped, all else is quoted."""
    return text if _is_json_scalar(text) else _PYTHON_LITERALS.get(text) or json.dumps(text, ensure_ascii=False)


def _is_json_scalar(text: str) -> bool:
    return _JSON_SCALAR.fullmatch(text) is not None
