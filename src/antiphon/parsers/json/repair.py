"""One JSON value while it arrives, cut anywhere: what is valid passes as it is, what has one meaning only is mended.

    VALUE ──{[──▶ KEY / VALUE ──"──▶ (string) ──▶ COLON / NEXT ──,──▶ KEY / VALUE …
      └──else──▶ (word, number) ──▶ NEXT ──}]──▶ NEXT, or done at the outermost

Mended: what json_string.py mends, words without quotes, Python's constants, commas too many or too few, brackets that
do not fit, and what is missing at the end. What needs more is `broken`: reading stops there. A key, and the comma
before it, is said when its value begins, so that an end in between leaves nothing half said.
"""

import json
from enum import IntEnum
from typing import Final

from antiphon.parsers.json.skip import CONTAINER, DEEPEST, LONG, SHORT, WHITE, after, leap
from antiphon.parsers.json.string import JsonString

MOST_PARTS: Final = 8192  # commas, and lists and objects by their weight
MOST_MENDS: Final = 128
MOST_ESCAPES: Final = 512  # that are mended, in one string after the other

_OPENS: Final = {"{": "}", "[": "]", "(": "]"}  # what each is closed by, in JSON
_CLOSES: Final = {"}": "}", "]": "]", ")": "]"}
_ENDS_WORD: Final = frozenset(" \t\n\r,:;{}[]()<>\"'`=")
_WORDS: Final = frozenset({"true", "false", "null"})
_PYTHON: Final = {"True": "true", "False": "false", "None": "null", "NaN": "null", "Infinity": "null"}
_LACK_COMMA: Final = frozenset("\"'{[")  # what begins without doubt, even if there was no comma
_NUMERIC: Final = frozenset("-0123456789")


class State(IntEnum):
    VALUE = 0
    KEY = 1
    COLON = 2
    NEXT = 3
    DONE = 4
    BROKEN = 5


VALUE, KEY, COLON, NEXT, DONE, BROKEN = State  # looked up on the token path


class JsonMend:
    def __init__(self) -> None:
        self._state = VALUE
        self._closers: list[str] = []  # of what is open, the innermost last
        self._string = JsonString()
        self._is_key = False  # what is being read: a string or a word
        self._word: list[str] = []
        self._held: list[str] = []  # a comma, a key, a colon, and space: they count only if a value follows
        self._mends = 0
        self._parts = 0
        self._stretch = LONG  # how far a leap goes; near a bound less and less, and then no more
        self._out: list[str] = []

    @property
    def done(self) -> bool:
        return self._state is DONE

    @property
    def broken(self) -> bool:
        return self._state is BROKEN

    @property
    def over(self) -> bool:
        """It is done or broken."""
        return self._state >= DONE

    @property
    def waits(self) -> bool:
        """Whether what comes can wait until something is closed: a string flows once it has begun."""
        return self._is_key or not self._string.quote

    def feed(self, text: str, at: int = 0) -> tuple[str, int]:
        """The JSON that this adds, and where the reading stopped: at the end, after the value, or where it broke."""
        end, string = len(text), self._string
        if not at and self.flows(text):
            return text, end
        while at < end and self._state < DONE:
            if string.quote:
                at = self._go_on_string(text, at)
            elif self._word:
                at = self._go_on_word(text, at)
            elif end - at > SHORT:
                at = self._leap(text, at) if self._may_leap(text[at]) else self._between(text, at)
            elif self._state is KEY and (after_pair := self._pair(text, at)):
                at = after_pair
            else:
                at = self._between(text, at)
        return self._said(), at

    def flows(self, text: str) -> bool:
        """Whether it is all in the middle of a string, as most of most arguments is; then it passes as it is."""
        return not self._is_key and self._string.passes(text)

    def finish(self) -> str:
        """What is missing to make it whole. Nothing was a value at all if nothing comes."""
        if self._state is not DONE:
            if self._string.quote:
                self._string.close(self._held if self._is_key else self._out)
            elif self._word and not self._is_key and _is_whole("".join(self._word)):
                self._end_word()
            self._held.clear()
            self._out += reversed(self._closers)
            self._state = DONE
        return self._said()

    def give_up(self) -> str:
        """What was held back; all that follows is to be passed on as it is."""
        self._out += self._held
        self._held.clear()
        self._state = DONE
        return self._said()

    def _said(self) -> str:
        out = self._out
        said = out[0] if len(out) == 1 else "".join(out)
        out.clear()
        return said

    def _pair(self, text: str, at: int) -> int:
        """A name, and a string without escapes or a word with what follows it, as most pairs are: the end, or 0."""
        rest = text[at:]
        parts = rest.split('"', 4)
        if len(parts) < 3 or "\\" in rest or parts[0].strip(WHITE) or not parts[1].isprintable():
            return 0
        end = len(parts[0]) + len(parts[1]) + 2
        colon = parts[2].strip(WHITE)
        if colon == ":":
            if len(parts) < 5 or not parts[3].isprintable():
                return 0
            end += len(parts[2]) + len(parts[3]) + 2
        else:
            word = colon.partition(",")[0].partition("}")[0]
            if len(word) == len(colon) or word[:1] != ":" or not _is_whole(word[1:].strip(WHITE) or "-"):
                return 0
            end += parts[2].index(":") + len(word)
        self._say_held()
        self._out.append(rest[:end])
        self._state = NEXT
        return at + end

    def _may_leap(self, char: str) -> bool:
        if self._closers:
            return char == "," and self._state is NEXT and self._stretch > SHORT
        return char == "{" or char == "["

    def _leap(self, text: str, at: int) -> int:
        closers = self._closers
        end, opened, parts, deep = leap(text, at, self._stretch, closers[-1] if closers else "", len(closers))
        if deep or self._parts + parts > MOST_PARTS:
            self._stretch //= 8
            return self._between(text, at)
        if end == at:
            return self._between(text, at)
        self._parts += parts
        self._out.append(text[at:end])
        if opened is None:
            if closers:
                closers.pop()
            self._state = NEXT if closers else DONE
            return end
        closers += opened
        fresh = text[end - 1] in "{["
        self._state = NEXT if not fresh else KEY if text[end - 1] == "{" else VALUE
        return end

    # Between values.

    def _between(self, text: str, at: int) -> int:
        char = text[at]
        state = self._state
        if char in WHITE:
            return self._space(text, at)
        if char == '"' and state < COLON:
            self._open_string(char)
        elif char == ":" and state is COLON:
            self._held.append(":")
            self._state = VALUE
        elif char == "," and state is NEXT:
            if self._parts >= MOST_PARTS:
                return self._break(at)
            self._comma()
        elif char in _CLOSES:
            return self._close(_CLOSES[char], at)
        else:
            return self._begin(text, at)
        return at + 1

    def _space(self, text: str, at: int) -> int:
        """Space before the value is nobody's."""
        end = at + 1
        if end < len(text) and text[end] in WHITE:
            end = after(text, end, WHITE)
        if self._closers:
            (self._held if self._held else self._out).append(text[at:end])
        return end

    def _comma(self) -> None:
        self._held.append(",")
        self._parts += 1
        self._state = KEY if self._closers[-1] == "}" else VALUE

    def _open_string(self, quote: str) -> None:
        self._is_key = self._state is KEY
        if not self._is_key:
            self._say_held()
        self._string.open(quote, self._held if self._is_key else self._out)

    def _begin(self, text: str, at: int) -> int:
        """Anything but a plain string: a container, a word, a number, and whatever has to be mended."""
        char, state = text[at], self._state
        if state is NEXT:
            return self._lack_comma(char, at)
        if state is COLON:
            return self._lack_colon(char, at)
        if char == "'":
            self._open_string(char)
            return self._mend(state, at + 1)
        if char in _OPENS and state is VALUE:
            return self._open(char, at)
        if char == "," and self._closers:
            return self._mend(state, at + 1)  # it is one too many
        return self._begin_word(text, at)

    def _lack_colon(self, char: str, at: int) -> int:
        if char != "=":
            return self._break(at)
        self._held.append(":")
        return self._mend(VALUE, at + 1)

    def _begin_word(self, text: str, at: int) -> int:
        char = text[at]
        if char in _ENDS_WORD or not (char in _NUMERIC or self._closers or char.isalpha()):
            return self._break(at)
        self._is_key = self._state is KEY
        return self._go_on_word(text, at)

    def _lack_comma(self, char: str, at: int) -> int:
        if char not in _LACK_COMMA or (char in "{[" and self._closers[-1] == "}"):
            return self._break(at)
        self._comma()
        return self._mend(self._state, at)

    def _open(self, char: str, at: int) -> int:
        self._parts += CONTAINER
        if len(self._closers) >= DEEPEST or self._parts > MOST_PARTS:
            return self._break(at)
        self._say_held()
        self._closers.append(_OPENS[char])
        self._out.append("{" if char == "{" else "[")
        self._state = KEY if char == "{" else VALUE
        return at + 1 if char != "(" else self._mend(self._state, at + 1)

    def _close(self, closer: str, at: int) -> int:
        """The innermost of its kind, and all within it."""
        closers = self._closers
        if closer not in closers or self._state is COLON:
            return self._break(at)
        fits = closers[-1] == closer
        if self._held:
            fits = False
            if self._state is VALUE and closers[-1] == "}":
                self._held.append("null")  # a name that was given no value
                self._say_held()
            self._held.clear()
        while True:
            last = closers.pop()
            self._out.append(last)
            if last == closer:
                break
        self._state = NEXT if closers else DONE
        return at + 1 if fits else self._mend(self._state, at + 1)

    def _say_held(self) -> None:
        if self._held:
            self._out += self._held
            self._held.clear()

    def _mend(self, state: State, at: int) -> int:
        """Go on in this state; too often, and it is no JSON."""
        self._mends += 1
        self._state = state if self._mends <= MOST_MENDS or state is DONE else BROKEN
        return at

    def _break(self, at: int) -> int:
        self._state = BROKEN
        return at

    def _after_value(self) -> None:
        if self._is_key:
            self._state = COLON
        else:
            self._state = NEXT if self._closers else DONE

    # Within a string, a word or a number.

    def _go_on_string(self, text: str, at: int) -> int:
        string = self._string
        at = string.feed(text, at, self._held if self._is_key else self._out)
        if not string.quote:
            self._after_value()
        elif string.mends > MOST_ESCAPES:
            self._state = BROKEN
        return at

    def _go_on_word(self, text: str, at: int) -> int:
        end = at
        while _ENDS_WORD.isdisjoint(text[end : end + 32]) and end < len(text):
            end += 32
        while end < len(text) and text[end] not in _ENDS_WORD:
            end += 1
        end = min(end, len(text))
        self._word.append(text[at:end])
        if end < len(text):
            self._end_word()
        return end

    def _end_word(self) -> None:
        word = self._word[0] if len(self._word) == 1 else "".join(self._word)
        self._word.clear()
        said = json.dumps(word, ensure_ascii=False) if self._is_key else scalar(word)
        if not self._is_key:
            self._say_held()
        (self._held if self._is_key else self._out).append(said)
        self._after_value()
        if said is not word:
            self._mend(self._state, 0)


def scalar(word: str) -> str:
    """A word without quotes as JSON: itself if it is some, Python's constants, else a string."""
    return word if _is_whole(word) else _PYTHON.get(word) or json.dumps(word, ensure_ascii=False)


def _is_whole(word: str) -> bool:
    return word in _WORDS or (word[0] in _NUMERIC and _is_number(word.removeprefix("-")))


def _is_number(word: str) -> bool:
    if _are_digits(word):
        return word[0] != "0" or len(word) == 1
    base, e, exponent = word.replace("E", "e").partition("e")
    digits, point, fraction = base.partition(".")
    return (
        _are_digits(digits)
        and (digits[0] != "0" or len(digits) == 1)
        and (not point or _are_digits(fraction))
        and (not e or _are_digits(exponent[exponent[:1] in ("+", "-") :]))
    )


def _are_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()
