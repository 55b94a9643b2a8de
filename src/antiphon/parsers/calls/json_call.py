"""One call whose arguments are JSON, however it is named: what object_call.py and head_call.py have in common.

Arguments that cannot be mended are passed on as they were said, up to the next mark, so that whoever reads them sees
what is wrong. Arguments that a mark cuts off are whole by then.

One call whose name stands before its arguments: a head, and a JSON object.

What a head looks like is the family's: a function says the name that is in it, or that there is none.

One call as a JSON object: {"name": …, "arguments": {…}}, its keys in any order, cut anywhere.

    BEGIN ─{─▶ KEY ─"…"─▶ COLON ─:─▶ VALUE ─▶ KEY … ─}─▶ over
      └──anything else, or an object without a known name: `misfit`

The call starts as soon as its name is known and its arguments begin, and they are passed on while they arrive.
"""

import json
from collections.abc import Callable, Container
from enum import IntEnum
from typing import Final

from msgspec import Struct

from antiphon.core.deltas import CallDelta, CallDone, CallStarted
from antiphon.parsers.calls.arguments import NOTHING, Arguments, Flow
from antiphon.parsers.calls.base import Piece
from antiphon.parsers.calls.delimited_calls import GATHERED, Wait
from antiphon.parsers.calls.marker_search import Finder
from antiphon.parsers.json.repair import JsonMend
from antiphon.parsers.json.skip import WHITE, after

LONGEST_NAME: Final = 256


class JsonCall:
    """`known`: the names that may be called; a call of another is no call. None: any name. `ends`: what may end it."""

    def __init__(self, number: int, known: Container[str] | None, ends: Finder) -> None:
        self.number = number
        self._known = known
        self._ends = ends
        self._arguments = Arguments()
        self._verbatim = False  # they cannot be mended
        self._early: list[str] = []  # arguments that came before the name
        self._argued = False  # there were arguments
        self.name: str | None = None
        self.started = False
        self.over = False
        self.misfit = False

    def finish(self, held: str, out: list[Piece]) -> str:
        """The output is over, and the call with it: asked only if it has started."""
        if self._verbatim:
            self._argue(held, out)
        elif not self._arguments.done:
            self._argue(self._arguments.finish(), out)
        self._end(out)
        return ""

    @property
    def stream(self) -> Flow | None:
        """What arguments that have begun, and go on, can be fed to; all it says is theirs."""
        flow = self._arguments.flow
        return None if flow is None or flow.over or self._verbatim or not self.started else flow

    def flow(self, text: str) -> str:
        """Nothing: who feeds it looks at `stream`."""
        return ""

    def _accept(self, name: object) -> bool:
        """Whether it is a name; else this is no call."""
        if not isinstance(name, str) or not self._is_name(name):
            self.misfit = True
            return False
        self.name = name
        return True

    def _is_name(self, name: str) -> bool:
        return 0 < len(name) <= LONGEST_NAME and name.isprintable() and (self._known is None or name in self._known)

    def end_arguments(self) -> None:
        """They are whole, and it was not this that was fed them: it looks for itself, if need be."""

    def _start(self, out: list[Piece]) -> None:
        if self.name is None:
            return
        self.started = True
        out.append(CallStarted(self.number, self.name))
        if self._early:
            self._argue("".join(self._early), out)

    def _read_arguments(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        """Where they stopped, and whether to go on from there."""
        arguments = self._arguments
        if self._verbatim or arguments.broken:
            return self._salvage(text, at, out)
        said, at = arguments.feed(text, at)
        if said:
            self._argue(said, out)
        if arguments.broken:
            return self._salvage(text, at, out)
        return at, True

    def _argue(self, said: str, out: list[Piece]) -> None:
        self._argued = True
        if not self.started:
            self._early.append(said)
        elif said:
            out.append(CallDelta(self.number, said))

    def _salvage(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        if not self.started:
            self.misfit = True
            return at, True
        place, mark = self._ends.over(text).next(at)
        if not self._verbatim:
            if place == at < len(text):
                if mark:
                    self._argue(self._arguments.finish(), out)
                    self._end(out)
                return at, bool(mark)
            self._verbatim = True
            self._argue(self._arguments.give_up(), out)
        self._argue(text[at:place], out)
        if mark:
            self._end(out)
        return place, bool(mark)

    def _end(self, out: list[Piece]) -> None:
        if not self.started:
            self._start(out)
        if not self.started:
            self.misfit = True
            return
        if not self._argued:
            self._argue(NOTHING, out)
        out.append(CallDone(self.number))
        self.over = True


LONGEST_HEAD: Final = 512
_NOT: Final = Wait()
_WAIT_HEAD: Final = Wait(frozenset("{"))

Head = Callable[[str], str | None]


class HeadCall(JsonCall):
    def __init__(self, number: int, known: Container[str] | None, ends: Finder, head: Head) -> None:
        super().__init__(number, known, ends)
        self._head = head
        self._read: list[str] = []
        self._size = 0

    def feed(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        if not self.started:
            at = self._read_head(text, at, out)
        if not self.started or at == len(text):
            return at, True
        at, more = self._read_arguments(text, at, out)
        if self._arguments.done and not (self._verbatim or self.over):
            self._end(out)
        return at, more

    def waits(self) -> Wait:
        return _NOT if self.started else _WAIT_HEAD

    def _read_head(self, text: str, at: int, out: list[Piece]) -> int:
        brace = text.find("{", at, at + LONGEST_HEAD)
        end = brace if brace >= 0 else min(len(text), at + LONGEST_HEAD)
        self._read.append(text[at:end])
        self._size += end - at
        if self._size >= LONGEST_HEAD:
            self.misfit = True
        elif brace >= 0 and self._accept(self._head("".join(self._read))):
            self._start(out)
        return end


_WAIT: Final = Wait(frozenset("{}"))  # for the arguments
_WAIT_KEY: Final = Wait(frozenset("{},:"))
_WAIT_EARLY: Final = Wait(frozenset("}"))  # arguments before the name, of which nothing can be said
_USUAL: Final = ["{", ":", ",", ":"]  # what stands around the strings that a call begins with
_KEYED: Final = ["{", ":"]
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
        self._plausible = known is None  # it may be a call, by its first key

    def feed(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        """Where it stopped: at the end, after the call, or at what does not fit; and whether to go on from there."""
        end, more = len(text), True
        if self._state is BEGIN and text[at] == "{":
            at, more = self._begin(text, at, out)
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
            return _NOT if self.started else _WAIT_EARLY
        return _WAIT if self._plausible else _WAIT_KEY

    def end_arguments(self) -> None:
        """They are whole, and it was not this that was fed them."""
        self._state = KEY

    def _begin(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        """Nearly all calls begin with their name, and an object of arguments follows: that is read in one go."""
        brace = text.find("{", at + 1, at + LONGEST_NAME)
        parts = text[at : brace if brace >= 0 else at + LONGEST_NAME].split('"')
        if brace >= 0:
            return (brace if self._is_usual(parts, out) else at), True
        if not self._plausible and len(parts) > 2:
            self._plausible = self._fits(parts[1])
        waits = len(text) - at < GATHERED and (self._plausible or len(parts) < 3) and self._may_be_usual(parts)
        return at, not waits

    def _may_be_usual(self, parts: list[str]) -> bool:
        """The beginning of a head, parted at its quotes."""
        keys, around = self._keys, [part.strip(WHITE) for part in parts[::2]]
        if len(parts) % 2 and not around[-1]:
            around.pop()
        usual = _KEYED if keys.keyed else _USUAL
        if around != usual[: len(around)] or len(parts) >= 2 * len(usual):
            return False
        return keys.keyed or len(parts) < 3 or parts[1] in keys.name

    def _is_usual(self, parts: list[str], out: list[Piece]) -> bool:
        """The head, parted at its quotes; the call has started then."""
        if len(parts) % 2 == 0:
            return False  # it ends in a string
        keys, around = self._keys, [part.strip(WHITE) for part in parts[::2]]
        if not keys.keyed and around == _USUAL and parts[1] in keys.name and parts[5] in keys.arguments:
            name = parts[3]
        elif keys.keyed and around == _KEYED and parts[1] not in keys.within:
            name = parts[1]
        else:
            return False
        if "\\" in name or not self._is_name(name):
            return False
        self.name, self._key, self._state, self._argued = name, parts[-2], ARGUMENTS, True
        self._start(out)
        return True

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
            self.misfit = not self._fits(self._key)

    def _fits(self, key: str) -> bool:
        """Whether a call that must name what is known may have it."""
        keys = self._keys
        if keys.keyed:
            return self._known is None or key in self._known
        return key in keys.name or key in keys.arguments or key in keys.within or key in OTHERS

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
