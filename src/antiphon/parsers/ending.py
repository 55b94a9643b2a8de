"""The closing mark of an answer, such as </answer>: where nothing but space follows, it was no part of the answer.

Space around it is nobody's either. A mark that text follows was quoted, unless it is a control token: models do not
quote those.
"""

from collections.abc import Sequence
from typing import Final

from antiphon.parsers.calls.base import Said
from antiphon.parsers.calls.finder import Finder

PATIENCE: Final = 64  # marks in an answer; where there are more, they are text


class Ending:
    def __init__(self, mark: str, control: bool) -> None:
        self._finder = Finder(mark)
        self._control = control
        self._fed = 0  # where what was fed ends
        self._held = ""  # what may be the beginning of the mark
        self._tail: list[str] = []  # space and marks, which count only if text follows
        self._marked = False
        self._seen = 0

    def feed(self, said: Said) -> Sequence[Said]:
        out: list[Said] = []
        if not self._held and not self._finder.may_be_in(said.text):
            self._fed = said.end
            if not (self._tail or self._marked or said.text[-1].isspace()):
                return (said,)
            self._say(said.text, said.end, out)
            return out
        text, self._fed = self._held + said.text, said.end
        search, before, at, more = self._finder.over(text), said.end - len(text), 0, True
        while more and at < len(text):
            place, mark = search.next(at) if self._seen < PATIENCE else (len(text), "")
            self._say(text[at:place], before + place, out)
            at, more = place + len(mark), bool(mark)
            if mark:
                self._close(mark)
        self._held = text[at:]
        return out

    def finish(self) -> Sequence[Said]:
        """A mark that was cut is text: nobody knows what it would have become."""
        left = ("" if self._marked else "".join(self._tail)) + self._held
        self._held = ""
        self._tail.clear()
        return (Said(left, self._fed),) if left else ()

    def _close(self, mark: str) -> None:
        self._marked = True
        self._seen += 1
        if self._control:
            self._tail.clear()
        else:
            self._tail.append(mark)

    def _say(self, text: str, end: int, out: list[Said]) -> None:
        if self._control and self._marked:
            text = text.lstrip()
        if body := text.rstrip():
            out.append(Said("".join([*self._tail, body]), end - len(text) + len(body)))
            self._tail.clear()
            self._marked = False
        if len(body) < len(text):
            self._tail.append(text[len(body) :])
