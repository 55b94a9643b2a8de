"""Strings as Python writes them, as the inside of JSON strings: in bulk, in C.

Escapes that have a code of their own are turned one by one, and only so many of them: the others stand for themselves,
as those do that Python does not know.

Words and numbers as Python writes them, as JSON.
"""

import json
from sys import maxunicode
from typing import Final

from antiphon.parsers.calls.typed_values import inner, quoted

MOST_CODES: Final = 128  # such as \\x41, in an answer
_WINDOW: Final = 256
_LONGEST: Final = 10  # \\UXXXXXXXX
_LENGTHS: Final = {"x": 4, "u": 6, "U": 10}
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_MASK: Final = 0xF0000  # private characters stand for escapes while all else is escaped for JSON
_MASKED: Final = [  # the first must be: what is after it begins no escape
    (escape, chr(_MASK + number), said)
    for number, (escape, said) in enumerate(
        {
            "\\\\": "\\\\",
            "\\n": "\\n",
            "\\t": "\\t",
            "\\r": "\\r",
            "\\b": "\\b",
            "\\f": "\\f",
            '\\"': '\\"',
            "\\'": "'",
            "\\u": "\\u",
        }.items()
    )
]
_CODE: Final = _MASKED[-1][1]
_PLAIN: Final = {"\\a": "\x07", "\\v": "\x0b", "\\0": "\x00", "\\\n": ""}


def end_of_string(text: str, at: int, quote: str) -> int:
    """Where the quote is that ends it; -1: not here. The text begins outside of an escape."""
    place = text.find(quote, at)
    if text.find("\\", at, place if place >= 0 else len(text)) < 0:
        return place
    size = _WINDOW
    while True:  # ever larger pieces, so that the time is linear in the length of the string
        hidden = text[at : at + size].replace("\\\\", "\0\0").replace("\\" + quote[0], "\0\0")
        if (found := hidden.find(quote)) >= 0:
            return at + found
        if at + size >= len(text):
            return -1
        size *= 4


def whole_until(text: str, at: int, quote: str) -> int:
    """Of a string that goes on: where an escape begins, or a quote, that is not all here yet; else the end."""
    end = len(text)
    slash = text.rfind("\\", max(at, end - _LONGEST))
    if slash >= 0:
        run = text[at : slash + 1]
        if (len(run) - len(run.rstrip("\\"))) % 2 and end - slash < _LENGTHS.get(text[slash + 1 : slash + 2], 2):
            return slash
    for size in range(min(len(quote) - 1, end - at), 0, -1):
        if text.endswith(quote[:size]) and not _is_escaped(text, at, end - size):
            return end - size
    return end


def _is_escaped(text: str, at: int, place: int) -> bool:
    before = text[at:place]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1


class Escapes:
    """Of an answer."""

    def __init__(self) -> None:
        self._left = MOST_CODES

    def turned(self, text: str) -> str:
        """Whole escapes only."""
        if "\\" not in text:
            return inner(text)
        for escape, mask, _ in _MASKED:
            text = text.replace(escape, mask)
        if "\\" in text:
            text = self._others(text)
        said = _unmasked(inner(text))
        if _CODE not in text or _is_inner(said):
            return said
        return _unmasked(inner(self._codes(text, _CODE, "u")))

    def _others(self, text: str) -> str:
        """What JSON does not know."""
        for escape, plain in _PLAIN.items():
            text = text.replace(escape, plain)
        return self._codes(self._codes(text, "\\x", "x"), "\\U", "U")

    def _codes(self, text: str, escape: str, kind: str) -> str:
        """In words if they are right; those that are wrong, or too many, stand for themselves."""
        begin, *parts = text.split(escape, self._left + 1)
        digits = _LENGTHS[kind] - 2
        out = [begin]
        for part in parts:
            self._left -= 1
            code = part[:digits]
            right = self._left >= 0 and len(code) == digits and _HEX.issuperset(code) and int(code, 16) <= maxunicode
            out.append(chr(int(code, 16)) + part[digits:] if right else f"\\{kind}{part}")
        return "".join(out).replace(escape, "\\" + kind)


def _unmasked(text: str) -> str:
    for _, mask, said in _MASKED:
        text = text.replace(mask, said)
    return text


def _is_inner(said: str) -> bool:
    try:
        json.loads(f'"{said}"')
    except ValueError:
        return False
    return True


_NUMBER_WINDOW: Final = 8192
WORDS: Final = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_DIGITS: Final = "0123456789,"
_RUN: Final = "0123456789.-+eE, \t\r\n"
_LONGEST_NUMBER: Final = 400  # of a number
NUMERIC: Final = frozenset("+-.0123456789")


def is_plain_number(word: str) -> bool:
    """Whether JSON has it too."""
    if word.isdigit():
        return word.isascii() and (word[0] != "0" or word == "0")
    if len(word) > _LONGEST_NUMBER or word[:1] not in NUMERIC:
        return False
    try:
        json.loads(word)
    except ValueError:
        return False
    return True


def word_as_json(word: str) -> str:
    """A constant, a number, or else the word itself as a string."""
    if word in WORDS:
        return WORDS[word]
    if is_plain_number(word):
        return word
    if len(word) <= _LONGEST_NUMBER and word[0] in NUMERIC and word.isascii():
        return _number(word) or quoted(word)
    return quoted(word)


def _number(word: str) -> str:
    """1_000, 0x1F, 007, .5, 1., +1; nothing if it is none."""
    try:
        return str(int(word, 0))
    except ValueError:
        pass
    try:
        return str(int(word))
    except ValueError:
        pass
    try:
        value = float(word)
    except ValueError:
        return ""
    return repr(value) if value - value == 0 else ""


def number_run(text: str, at: int) -> tuple[str, int]:
    """Plain numbers, each with a comma after it, as many as there are: without the last comma; and where they end."""
    window = text[at : at + _NUMBER_WINDOW]
    run = window[: len(window) - len(window.lstrip(_DIGITS))]
    if len(run) > 1 and run[0] != "0" and run[0] != "," and ",," not in run and ",0" not in run:
        run = run[: run.rfind(",") + 1]
        return run[:-1], at + len(run)
    run = window[: len(window) - len(window.lstrip(_RUN))]
    run = run[: run.rfind(",") + 1]
    while run:
        try:
            json.loads(f"[{run[:-1]}]")
        except json.JSONDecodeError as wrong:
            run = run[: run.rfind(",", 0, max(0, wrong.pos - 1)) + 1]
        except ValueError:  # a number that is too long
            return "", at
        else:
            return "".join(run[:-1].split()), at + len(run)
    return "", at
