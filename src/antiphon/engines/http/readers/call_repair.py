"""Repairs pieces of tool calls.

Some engines omit the index or the name, use the same index for every call, repeat the name in each piece, or send a
call at once with its arguments as an object. Each repaired piece has the number of its call; the first piece of a call,
and no other, has the name.
"""

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct, field

from antiphon.core.prompt import CallPiece
from antiphon.engines.http.readers.wire import Function, WireToolCall
from antiphon.errors import EngineFailed

MAX_CALLS = 256


class BracketTracker:
    """Tracks whether all brackets of a JSON text are closed; reads each character once, however the text is split."""

    def __init__(self) -> None:
        self._depth = 0
        self._started = self._quoted = self._escaped = False

    def feed(self, text: str) -> None:
        for character in text:
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped, self._quoted = character == "\\", character != '"'
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth, self._started = self._depth + 1, True
            elif character in "}]":
                self._depth -= 1

    @property
    def is_closed(self) -> bool:
        return self._started and not self._depth and not self._quoted


class _PendingCall(Struct):
    number: int
    id: str | None
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    _brackets: BracketTracker = field(default_factory=BracketTracker)
    _checked_pieces: int = 0  # pieces of the arguments already fed to the tracker

    def is_complete(self) -> bool:
        """Return whether the arguments are complete JSON."""
        self._brackets.feed("".join(self.arguments[self._checked_pieces :]))
        self._checked_pieces = len(self.arguments)
        return self._brackets.is_closed


class CallRepairer:
    def __init__(self) -> None:
        self._by_index: dict[int, _PendingCall] = {}
        self._last: _PendingCall | None = None
        self._count = 0

    def repair(self, calls: Iterable[WireToolCall]) -> Iterator[CallPiece]:
        for call in calls:
            yield from self._repair_piece(call, call.function or Function())

    def has_nameless(self) -> bool:
        """Return whether a call has begun and has no name yet."""
        return any(not call.name for call in self._by_index.values())

    def _repair_piece(self, call: WireToolCall, function: Function) -> Iterator[CallPiece]:
        open_call = self._find(call, function)
        arguments = _arguments_text(function.arguments)
        new_name = function.name or "" if not open_call.name else ""
        open_call.name = open_call.name or new_name
        open_call.arguments.append(arguments)
        if not open_call.name:
            return  # arguments are held back until the name arrives
        text = "".join(open_call.arguments) if new_name else arguments
        if new_name or text:
            yield CallPiece(index=open_call.number, name=new_name, arguments=text)

    def _find(self, call: WireToolCall, function: Function) -> _PendingCall:
        open_call = self._last if call.index is None else self._by_index.get(call.index)
        if open_call is None or _starts_new_call(call, function, open_call):
            return self._open_call(call)
        open_call.id = open_call.id or call.id
        return open_call

    def _open_call(self, call: WireToolCall) -> _PendingCall:
        if self._count == MAX_CALLS:
            raise EngineFailed("The engine sent too many tool calls.")
        open_call = _PendingCall(self._count, call.id)
        self._by_index[self._count if call.index is None else call.index] = open_call
        self._count += 1
        self._last = open_call
        return open_call


def _starts_new_call(call: WireToolCall, function: Function, open_call: _PendingCall) -> bool:
    """Return whether a piece starts a new call, although its index continues an open one."""
    if not function.name or not open_call.name:
        return False
    if call.id and open_call.id:
        return call.id != open_call.id
    return function.name != open_call.name or open_call.is_complete()


def _arguments_text(arguments: str | dict[str, object] | None) -> str:
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return msgspec.json.encode(arguments).decode()
