"""One call as a JSON object: {"name": …, "arguments": {…}}, its keys in any order, cut anywhere.

    BEGIN ─{─▶ KEY ─"…"─▶ COLON ─:─▶ VALUE ─▶ KEY … ─}─▶ over
      └──anything else, or an object without a known name: `misfit`

The call starts as soon as its name is known and its arguments begin, and they are passed on while they arrive.
"""

import json
from collections.abc import Container
from enum import IntEnum
from typing import Final

from msgspec import Struct

from antiphon.parsers.calls.base import Piece
from antiphon.parsers.calls.finder import Finder
from antiphon.parsers.calls.json_call import LONGEST_NAME, JsonCall
from antiphon.parsers.calls.marked import GATHERED, Wait
from antiphon.parsers.json_leap import WHITE, after
from antiphon.parsers.json_mend import JsonMend

_NOT: Final = Wait()
_WAIT: Final = Wait(frozenset("{}"))  # for the arguments
_WAIT_KNOWN: Final = Wait(frozenset("{},"))  # it may be no call, and it is soon told
OTHERS: Final = frozenset({"id", "type", "index", "tool_call_id", "call_id"})


class Keys(Struct, frozen=True, kw_only=True):
    """What a family calls the parts of a call."""

    name: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    within: tuple[str, ...] = ("function",)  # an object that holds the two
    keyed: bool = False  # the name is the key, and the arguments are its value


class State(IntEnum):
    BEGIN = 0
    KEY = 1
    COLON = 2
    VALUE = 3
    ARGUMENTS = 4


BEGIN, KEY, COLON, VALUE, ARGUMENTS = State  # looked up on the token path


class ObjectCall(JsonCall):
    """Where only known names are calls, an object with a key that no call has is none, and is not read to its end."""

    def __init__(self, number: int, known: Container[str] | None, ends: Finder, keys: Keys) -> None:
        super().__init__(number, known, ends)
        self._keys = keys
        self._state = BEGIN
        self._within = 0  # objects around the one that has the name
        self._reading: JsonMend | None = None  # a key, or a value that is not the arguments
        self._read: list[str] = []
        self._key = ""

    def feed(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        """Where it stopped: at the end, after the call, or at what does not fit; and whether to go on from there."""
        end, more = len(text), True
        while more and at < end and not (self.over or self.misfit):
            if self._state is ARGUMENTS:
                at, more = self._read_arguments(text, at, out)
                if self._arguments.done and not self._verbatim:
                    self._state = KEY
            elif self._reading is not None:
                at = self._read_on(self._reading, text, at, out)
            elif text[at] in WHITE:
                at = after(text, at, WHITE)
            elif text[at] == '"' and self._is_cut(text, at):
                more = False
            elif self._state is VALUE:
                at = self._value(text, at, out)
            else:
                at = self._punctuation(text, at, out)
        return at, more

    def waits(self) -> Wait:
        if self._state is ARGUMENTS:
            return _NOT
        return _WAIT if self._known is None else _WAIT_KNOWN

    def _punctuation(self, text: str, at: int, out: list[Piece]) -> int:
        char, state = text[at], self._state
        if state is KEY:
            if char == '"' or char == "'":
                return self._string(text, at, out)
            if char == "}":
                self._close(out)
            elif char != ",":
                self._unfit(out)
                return at
        elif state is COLON and char == ":":
            self._state = VALUE
        elif state is BEGIN and char == "{":
            self._state = KEY
        else:
            self._unfit(out)
            return at
        return at + 1

    def _close(self, out: list[Piece]) -> None:
        if self._within:
            self._within -= 1
        else:
            self._end(out)

    def _value(self, text: str, at: int, out: list[Piece]) -> int:
        if text[at] == "{" and self._key in self._keys.within:
            self._within += 1
            self._state = KEY
            return at + 1
        if self._begins_arguments():
            self._state = ARGUMENTS
            self._argued = True
            self._start(out)
            return at
        return self._string(text, at, out)

    def _string(self, text: str, at: int, out: list[Piece]) -> int:
        """A key, or a value that is not the arguments: mostly a short string that is all here."""
        if text[at] == '"' and (end := text.find('"', at + 1, at + LONGEST_NAME)) > 0:
            string = text[at + 1 : end]
            if "\\" not in string and string.isprintable():
                self._take(string, out)
                return end + 1
        self._reading = JsonMend()
        return at

    def _is_cut(self, text: str, at: int) -> bool:
        """Whether it is a short string that is not all here yet, and no arguments."""
        if len(text) - at > GATHERED or text.find('"', at + 1) > 0:
            return False
        return self._state is KEY or (self._state is VALUE and not self._begins_arguments())

    def _begins_arguments(self) -> bool:
        return not self._argued and (self._keys.keyed or self._key in self._keys.arguments)

    def _read_on(self, reading: JsonMend, text: str, at: int, out: list[Piece]) -> int:
        piece, at = reading.feed(text, at)
        self._read.append(piece)
        if reading.broken:
            self._unfit(out)
        elif reading.done:
            read = "".join(self._read)
            value = json.loads(read) if "\\" in read or read[0] != '"' else read[1:-1]
            self._read.clear()
            self._reading = None
            self._take(value, out)
        return at

    def _take(self, value: object, out: list[Piece]) -> None:
        """A key, or a value that is not the arguments."""
        if self._state is VALUE:
            self._state = KEY
            if self._key in self._keys.name and self.name is None and self._accept(value) and self._argued:
                self._start(out)
            return
        self._key = str(value)
        self._state = COLON
        if self._keys.keyed:
            self._accept_key(out)
        elif self._known is not None and not self.started:
            keys = self._keys
            self.misfit = self._key not in (*keys.name, *keys.arguments, *keys.within) and self._key not in OTHERS

    def _accept_key(self, out: list[Piece]) -> None:
        if self.name is None:
            self._accept(self._key)
        else:
            self._unfit(out)

    def _unfit(self, out: list[Piece]) -> None:
        """What has started is a call all the same: what it said so far is all it has to say."""
        if self.started:
            self._end(out)
        else:
            self.misfit = True
