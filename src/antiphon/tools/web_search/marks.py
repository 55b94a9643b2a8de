"""Marks of citations in what a model says, found as it comes: cut anywhere, the same marks are found.

    【3†L10-L12】  【3†L10】  【3】  【3†source】     a page by its cursor, and a line of it
    【0†Otters†otters.example】                     a link, as it stood in a page
    [3]  [3†L10-L12]                              some models write it so; [3] counts only where it cannot be else

What may become a mark is held back, some hundred characters at most. `[3]` is a mark behind a space or punctuation, not
in code, and not before `(`, `[` or `:`, which make a link or an index of it.
"""

import re
from collections.abc import Iterator

from msgspec import Struct

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
