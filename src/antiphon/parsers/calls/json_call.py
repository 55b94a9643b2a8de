"""One call whose arguments are JSON, however it is named: what object_call.py and head_call.py have in common.

Arguments that cannot be mended are passed on as they were said, up to the next mark, so that whoever reads them sees
what is wrong. Arguments that a mark cuts off are whole by then.
"""

from collections.abc import Container
from typing import Final

from antiphon.core.deltas import CallDelta, CallDone, CallStarted
from antiphon.parsers.calls.arguments import NOTHING, Arguments, Flow
from antiphon.parsers.calls.base import Piece
from antiphon.parsers.calls.finder import Finder

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
