"""Marks in what a model says → links that a reader can follow, and url_citation annotations with their exact place.

    Otters eat fish 【3†L10-L12】.   →   Otters eat fish ([otters.example](https://otters.example/food)).
                                                        └────────── start_index … end_index ──────┘

Indexes count characters (code points) of the text part that is open; a part begins where an item does. A mark that
names nothing which was read is left out, with the space before it; where it might be no mark at all, it stays.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from antiphon.core.deltas import CallDelta, CallDone, Citation, Delta, Text
from antiphon.protocol.types.items import UrlCitation
from antiphon.protocol.types.response import Logprob
from antiphon.tools.web_search.marks import Mark, Marks
from antiphon.tools.web_search.pages import Pages, host_of

_SPACE = " "
_OPENING: Final = frozenset(" \t\n([{\"'“‘«")  # no space is wanted behind these
_CLOSING: Final = frozenset(" \t\n.,;:!?)]}\"'”’»")  # nor before these
_ESCAPED: Final = str.maketrans({char: f"%{ord(char):02X}" for char in '()<>[]"\\` '})


class Citations:
    """Of one turn."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._logprobs: list[Logprob] = []  # of text that is held back
        self._begin()

    def _begin(self) -> None:
        self._marks = Marks()
        self._at = 0  # characters of the part so far
        self._last = ""  # the last of them
        self._space = False  # one was said and is held back
        self._left_out = False  # a mark, just now
        self._cited = ""  # the URL that was cited just now, with nothing behind it

    def feed(self, deltas: Sequence[Delta]) -> list[Delta]:
        out: list[Delta] = []
        for delta in deltas:
            if type(delta) is Text:
                self._logprobs += delta.logprobs
                self._take(self._marks.feed(delta.text), out)
            elif isinstance(delta, CallDelta | CallDone):
                out.append(delta)  # of a call that runs beside it
            else:
                out += self.finish()
                out.append(delta)
        return out

    def finish(self) -> list[Delta]:
        out: list[Delta] = []
        self._take(self._marks.finish(), out)
        if self._space and not self._left_out:
            self._say(_SPACE, out)
        if self._logprobs:
            self._say("", out)
        self._begin()
        return out

    def _take(self, pieces: Iterable[str | Mark], out: list[Delta]) -> None:
        for piece in pieces:
            if isinstance(piece, str):
                self._text(piece, out)
            else:
                self._mark(piece, out)

    def _text(self, text: str, out: list[Delta]) -> None:
        if self._space:
            if not (self._left_out and text[0] in _CLOSING):
                text = _SPACE + text
            self._space = False
        self._left_out = False
        if text[-1] == _SPACE:
            text, self._space = text[:-1], True
        if text:
            self._cited = ""
            self._say(text, out)

    def _mark(self, mark: Mark, out: list[Delta]) -> None:
        source = self._source(mark)
        if source is None and not mark.sure:
            self._text(mark.text, out)
            return
        if source is None or source[0] == self._cited:
            self._left_out = True
            return
        url, title = source
        link = f"([{host_of(url)}]({url.translate(_ESCAPED)}))"
        apart = _SPACE if self._space or (self._last and self._last not in _OPENING) else ""
        self._space = self._left_out = False
        self._say(apart + link, out)
        self._cited = url
        annotation = UrlCitation(url=url, title=title, start_index=self._at - len(link), end_index=self._at)
        out.append(Citation(annotation))

    def _source(self, mark: Mark) -> tuple[str, str] | None:
        if mark.host:
            return self._pages.linked(mark.cursor, mark.host)
        page = self._pages.get(mark.cursor)
        return None if page is None else page.source(mark.line)

    def _say(self, text: str, out: list[Delta]) -> None:
        self._at += len(text)
        self._last = text[-1:] or self._last
        out.append(Text(text, tuple(self._logprobs)))
        self._logprobs.clear()
