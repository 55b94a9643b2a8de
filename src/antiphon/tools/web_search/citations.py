"""Marks in what a model says → links that a reader can follow, and url_citation annotations with their exact place.

    Otters eat fish 【3†L10-L12】.   →   Otters eat fish ([otters.example](https://otters.example/food)).
                                                        └────────── start_index … end_index ──────┘

Indexes count characters (code points) of the text part that is open; a part begins where an item does. A mark that
names nothing which was read is left out, with the space before it; where it might be no mark at all, it stays.

Marks of citations in what a model says, found as it comes: cut anywhere, the same marks are found.

    【3†L10-L12】  【3†L10】  【3】  【3†source】     a page by its cursor, and a line of it
    【0†Otters†otters.example】                     a link, as it stood in a page
    [3]  [3†L10-L12]                              some models write it so; [3] counts only where it cannot be else

What may become a mark is held back, some hundred characters at most. `[3]` is a mark behind a space or punctuation, not
in code, and not before `(`, `[` or `:`, which make a link or an index of it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from antiphon.core.deltas import CallDelta, CallDone, Citation, Delta, Text
from antiphon.protocol.types.items import UrlCitation
from antiphon.protocol.types.response import Logprob
from antiphon.tools.web_search.page_view import Pages, host_of

LONGEST = 300  # characters of a mark
_OPEN, _CLOSE = "【", "】"
_OPENS = re.compile(r"[【\[]")
_DAGGER = "†"
_LONGEST_NUMBER = 4
_BEFORE = frozenset(" \t\n\r.,;:!?)]}\"'”’»。，、；：！？）")
_NOT_AFTER = frozenset("([:")
_TICK = "`"


class Mark(Struct, frozen=True, kw_only=True):
    text: str  # as it was said
    cursor: int
    line: int | None = None
    host: str = ""  # of a link: then the cursor is the link's number
    sure: bool = True  # it can be nothing else


class Marks:
    """One for each text."""

    def __init__(self) -> None:
        self._held = ""
        self._before = " "  # the character before what is held
        self._code = _Code()

    def feed(self, text: str) -> Iterator[str | Mark]:
        self._held += text
        yield from self._scan(last=False)

    def finish(self) -> Iterator[str | Mark]:
        yield from self._scan(last=True)

    def _scan(self, last: bool) -> Iterator[str | Mark]:
        held, begin, seen, at = self._held, 0, 0, 0
        while (at := _next_open(held, at)) >= 0:
            self._code.feed(held[seen:at])
            seen = at
            end = _end(held, at)
            mark = None if end is None else self._mark(held, at, end, last)
            if (end is None and not last) or mark is _LATER:
                break
            if isinstance(mark, Mark):
                if at > begin:
                    yield held[begin:at]
                yield mark
                begin = at = at + len(mark.text)
            else:
                at += 1
        stop = at if at >= 0 else len(held)
        self._code.feed(held[seen:stop])
        self._before = held[stop - 1] if stop else self._before
        self._held = held[stop:]
        if stop > begin:
            yield held[begin:stop]

    def _mark(self, held: str, at: int, end: int, last: bool) -> "Mark | _Later | None":
        mark = _read(held[at:end])
        if mark is None or held[at] == _OPEN or _DAGGER in mark.text:
            return mark
        before = held[at - 1] if at else self._before
        if before not in _BEFORE or self._code.is_open:
            return None
        if end == len(held) and not last:
            return _LATER
        return None if end < len(held) and held[end] in _NOT_AFTER else mark


class _Later:
    """What follows decides."""


_LATER = _Later()


class _Code:
    """Whether code is open: between backticks, in a line or fenced."""

    def __init__(self) -> None:
        self._run = 0  # backticks that just came
        self._open = 0  # those that the open code began with

    def feed(self, text: str) -> None:
        if _TICK not in text and not self._run and not self._open:
            return
        for char in text:
            self._run, self._open = _step(char, self._run, self._open)

    @property
    def is_open(self) -> bool:
        return bool(self._run or self._open)


def _step(char: str, run: int, opened: int) -> tuple[int, int]:
    if char == _TICK:
        return run + 1, opened
    if run:
        opened = run if not opened else (0 if run == opened or run >= 3 <= opened else opened)
    if char == "\n" and 0 < opened < 3:
        opened = 0
    return 0, opened


def _next_open(text: str, at: int) -> int:
    found = _OPENS.search(text, at)
    return -1 if found is None else found.start()


def _end(text: str, at: int) -> int | None:
    """Behind the mark that may begin here; the place itself if none does; None if that is not known yet."""
    close = _CLOSE if text[at] == _OPEN else "]"
    for place in range(at + 1, min(len(text), at + LONGEST)):
        char = text[place]
        if char == close:
            return place + 1
        if char in "\n【[" or (close == "]" and not _is_short(text, at, place)):
            return at
    return at if len(text) >= at + LONGEST else None


def _is_short(text: str, at: int, place: int) -> bool:
    """In plain brackets nothing but numbers and lines makes a mark."""
    return text[place] in "0123456789†L- –" and place - at <= 24


def _read(text: str) -> Mark | None:
    inner = text[1:-1].strip()
    number, _, rest = inner.partition(_DAGGER)
    number = number.strip()
    if not (number.isascii() and number.isdigit() and len(number) <= _LONGEST_NUMBER):
        return None
    words, dagger, host = rest.rpartition(_DAGGER)
    if dagger and words and host and not host.startswith("L"):
        return Mark(text=text, cursor=int(number), host=host.strip().removeprefix("www."))
    return Mark(text=text, cursor=int(number), line=_line(rest), sure=_DAGGER in inner)


def _line(text: str) -> int | None:
    digits = text.strip().removeprefix("L")
    length = next((place for place, char in enumerate(digits) if not char.isdigit()), len(digits))
    return int(digits[:length]) if 0 < length <= 6 and digits[:length].isascii() else None


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
