"""Citation markers in the output of a model, found incrementally, independent of how the text is split:

    【3†L10-L12】  【3†L10】  【3】  【3†source】     a page by its cursor, and a line of it
    【0†Otters†otters.example】                     a link, as it is written in a page
    [3]  [3†L10-L12]                              variants of some models; [3] counts only where it is unambiguous

Text that may become a marker is held back, some hundred characters at most. `[3]` is a marker after a space or
punctuation, outside of code, and not before `(`, `[` or `:`, which would make it a link or an index. The brackets of
markers are reserved: in page texts they are replaced.
"""

import re
from collections.abc import Iterator

from msgspec import Struct

MAX_MARKER_LENGTH = 300  # characters
_OPEN, _CLOSE = "【", "】"
_OPEN_PATTERN = re.compile(r"[【\[]")
_DAGGER = "†"
_MAX_DIGITS = 4
_ALLOWED_BEFORE = frozenset(" \t\n\r.,;:!?)]}\"'”’»。，、；：！？）")
_FORBIDDEN_AFTER = frozenset("([:")
_TICK = "`"
_REPLACEMENTS = str.maketrans({"【": "〔", "】": "〕", "†": "‡", "\r": None, "\t": " ", "\0": None})


class CitationMarker(Struct, frozen=True, kw_only=True):
    """A citation marker in the text."""

    text: str  # as the model wrote it
    cursor: int
    line: int | None = None
    host: str = ""  # set for a link; then `cursor` is the link's number
    is_certain: bool = True  # it cannot be anything else


class CitationMarkers:
    """Finds the markers of one text."""

    def __init__(self) -> None:
        self._pending = ""
        self._before = " "  # the character before the pending text
        self._code = _CodeSpans()

    def feed(self, text: str) -> Iterator[str | CitationMarker]:
        self._pending += text
        yield from self._scan(last=False)

    def finish(self) -> Iterator[str | CitationMarker]:
        yield from self._scan(last=True)

    def _scan(self, last: bool) -> Iterator[str | CitationMarker]:
        pending, begin, seen, at = self._pending, 0, 0, 0
        while (at := _find_open(pending, at)) >= 0:
            self._code.feed(pending[seen:at])
            seen = at
            end = _find_end(pending, at)
            marker = None if end is None else self._classify(pending, at, end, last)
            if (end is None and not last) or marker is _UNDECIDED:
                break
            if isinstance(marker, CitationMarker):
                if at > begin:
                    yield pending[begin:at]
                yield marker
                begin = at = at + len(marker.text)
            else:
                at += 1
        stop = at if at >= 0 else len(pending)
        self._code.feed(pending[seen:stop])
        self._before = pending[stop - 1] if stop else self._before
        self._pending = pending[stop:]
        if stop > begin:
            yield pending[begin:stop]

    def _classify(self, pending: str, at: int, end: int, last: bool) -> "CitationMarker | _Undecided | None":
        marker = _parse_marker(pending[at:end])
        if marker is None or pending[at] == _OPEN or _DAGGER in marker.text:
            return marker
        before = pending[at - 1] if at else self._before
        if before not in _ALLOWED_BEFORE or self._code.is_open:
            return None
        if end == len(pending) and not last:
            return _UNDECIDED
        return None if end < len(pending) and pending[end] in _FORBIDDEN_AFTER else marker


class _Undecided:
    """The text that follows decides whether this is a marker."""


_UNDECIDED = _Undecided()


class _CodeSpans:
    """Tracks whether code is open: between backticks, inline or fenced."""

    def __init__(self) -> None:
        self._run = 0  # length of the current run of backticks
        self._open = 0  # number of backticks that opened the code

    def feed(self, text: str) -> None:
        if _TICK not in text and not self._run and not self._open:
            return
        for char in text:
            self._run, self._open = _advance_ticks(char, self._run, self._open)

    @property
    def is_open(self) -> bool:
        return bool(self._run or self._open)


def _advance_ticks(char: str, run: int, opened: int) -> tuple[int, int]:
    if char == _TICK:
        return run + 1, opened
    if run:
        opened = run if not opened else (0 if run == opened or run >= 3 <= opened else opened)
    if char == "\n" and 0 < opened < 3:
        opened = 0
    return 0, opened


def _find_open(text: str, at: int) -> int:
    match = _OPEN_PATTERN.search(text, at)
    return -1 if match is None else match.start()


def _find_end(text: str, at: int) -> int | None:
    """Return the position after the marker that may begin here; `at` itself if there is none; None if undecided."""
    close = _CLOSE if text[at] == _OPEN else "]"
    for position in range(at + 1, min(len(text), at + MAX_MARKER_LENGTH)):
        char = text[position]
        if char == close:
            return position + 1
        if char in "\n【[" or (close == "]" and not _may_continue(text, at, position)):
            return at
    return at if len(text) >= at + MAX_MARKER_LENGTH else None


def _may_continue(text: str, at: int, position: int) -> bool:
    """In square brackets only digits and line references form a marker."""
    return text[position] in "0123456789†L- –" and position - at <= 24


def _parse_marker(text: str) -> CitationMarker | None:
    inner = text[1:-1].strip()
    number, _, remainder = inner.partition(_DAGGER)
    number = number.strip()
    if not (number.isascii() and number.isdigit() and len(number) <= _MAX_DIGITS):
        return None
    label, dagger, host = remainder.rpartition(_DAGGER)
    if dagger and label and host and not host.startswith("L"):
        return CitationMarker(text=text, cursor=int(number), host=host.strip().removeprefix("www."))
    return CitationMarker(text=text, cursor=int(number), line=_parse_line(remainder), is_certain=_DAGGER in inner)


def _parse_line(text: str) -> int | None:
    digits = text.strip().removeprefix("L")
    length = next((position for position, char in enumerate(digits) if not char.isdigit()), len(digits))
    return int(digits[:length]) if 0 < length <= 6 and digits[:length].isascii() else None


def escape_markers(text: str) -> str:
    """Replace the characters of markers in untrusted text, and remove lone surrogates."""
    return text.translate(_REPLACEMENTS).encode("utf-8", "replace").decode()
