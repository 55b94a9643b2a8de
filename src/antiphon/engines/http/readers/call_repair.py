"""Pieces of tool calls, put right: some engines leave out the index or the name, give every call the same index,
repeat the name in each piece, or send a call at once with its arguments as an object.

Each piece that comes out has the number of its call; the first one of a call, and no other, has the name.
"""

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct, field

from antiphon.core.prompt import CallPiece
from antiphon.engines.http.readers.wire import Function, ToolCall
from antiphon.errors import EngineFailed

MOST_CALLS = 256


class Brackets:
    """Whether all that JSON opened is closed. What comes is looked at once, however many pieces it comes in."""

    def __init__(self) -> None:
        self._open = 0
        self._began = self._quoted = self._escaped = False

    def feed(self, text: str) -> None:
        for character in text:
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped, self._quoted = character == "\\", character != '"'
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._open, self._began = self._open + 1, True
            elif character in "}]":
                self._open -= 1

    @property
    def closed(self) -> bool:
        return self._began and not self._open and not self._quoted


class _Open(Struct):
    number: int
    id: str | None
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    _brackets: Brackets = field(default_factory=Brackets)
    _looked_at: int = 0  # pieces of the arguments

    def complete(self) -> bool:
        """Whether its arguments have come to their end."""
        self._brackets.feed("".join(self.arguments[self._looked_at :]))
        self._looked_at = len(self.arguments)
        return self._brackets.closed


class Calls:
    def __init__(self) -> None:
        self._by_index: dict[int, _Open] = {}
        self._last: _Open | None = None
        self._count = 0

    def pieces(self, calls: Iterable[ToolCall]) -> Iterator[CallPiece]:
        for call in calls:
            yield from self._piece(call, call.function or Function())

    def nameless(self) -> bool:
        """Whether a call has begun and has no name yet."""
        return any(not call.name for call in self._by_index.values())

    def _piece(self, call: ToolCall, function: Function) -> Iterator[CallPiece]:
        opened = self._find(call, function)
        arguments = _text(function.arguments)
        fresh = function.name or "" if not opened.name else ""
        opened.name = opened.name or fresh
        opened.arguments.append(arguments)
        if not opened.name:
            return  # its arguments wait until there is one
        told = "".join(opened.arguments) if fresh else arguments
        if fresh or told:
            yield CallPiece(index=opened.number, name=fresh, arguments=told)

    def _find(self, call: ToolCall, function: Function) -> _Open:
        known = self._last if call.index is None else self._by_index.get(call.index)
        if known is None or _begins(call, function, known):
            return self._begin(call)
        known.id = known.id or call.id
        return known

    def _begin(self, call: ToolCall) -> _Open:
        if self._count == MOST_CALLS:
            raise EngineFailed("The engine sent tool calls without an end.")
        opened = _Open(self._count, call.id)
        self._by_index[self._count if call.index is None else call.index] = opened
        self._count += 1
        self._last = opened
        return opened


def _begins(call: ToolCall, function: Function, known: _Open) -> bool:
    """Whether this is a new call, although it looks as if it went on with a known one."""
    if not function.name or not known.name:
        return False
    if call.id and known.id:
        return call.id != known.id
    return function.name != known.name or known.complete()


def _text(arguments: str | dict[str, object] | None) -> str:
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return msgspec.json.encode(arguments).decode()
