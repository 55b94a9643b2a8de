"""One call whose name stands before its arguments: a head, and a JSON object.

What a head looks like is the family's: a function says the name that is in it, or that there is none.
"""

from collections.abc import Callable, Container
from typing import Final

from antiphon.parsers.calls.base import Piece
from antiphon.parsers.calls.finder import Finder
from antiphon.parsers.calls.json_call import JsonCall
from antiphon.parsers.calls.marked import Wait

LONGEST_HEAD: Final = 512
_NOT: Final = Wait()
_WAIT: Final = Wait(frozenset("{"))

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
        return _NOT if self.started else _WAIT

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
