"""Replace citation markers in the output of a model by Markdown links and url_citation annotations with their position.

    Otters eat fish 【3†L10-L12】.   →   Otters eat fish ([otters.example](https://otters.example/food)).
                                                        └────────── start_index … end_index ──────┘

Indexes count code points of the open text part; each item begins a new part. A marker that names no page which was read
is removed, with the space before it; if it may not be a marker at all, it stays. Markers are found independent of how
the text is split:

    【3†L10-L12】  【3†L10】  【3】  【3†source】     a page by its cursor, and a line of it
    【0†Otters†otters.example】                     a link, as it is written in a page
    [3]  [3†L10-L12]                              variants of some models; [3] counts only where it is unambiguous

Text that may become a marker is held back, some hundred characters at most. `[3]` is a marker after a space or
punctuation, outside of code, and not before `(`, `[` or `:`, which would make it a link or an index. The brackets of
markers are reserved: in page texts they are replaced.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.deltas import CallDelta, CallDone, Citation, Delta, Text
from antiphon.protocol.types.parts import FileCitation, Logprob, UrlCitation
from antiphon.tools.web_search.page_view import ResponsePages, display_host

MAX_MARKER_LENGTH = 300  # characters
_CLOSE = {"【": "】", "[": "]"}
# A marker, or its beginning at the end of the text. In square brackets only digits and line references form one.
_CANDIDATE = re.compile(rf"【[^\n【\[】]{{0,{MAX_MARKER_LENGTH - 2}}}(?:】|\Z)|\[[0-9†L\- –]{{0,24}}(?:\]|\Z)")
_LINE_PATTERN = re.compile(r"\s*L?([0-9]{1,6})(?!\d)")
_DAGGER = "†"
_MAX_DIGITS = 4
_ALLOWED_BEFORE = frozenset(" \t\n\r.,;:!?)]}\"'”’»。，、；：！？）")
_FORBIDDEN_AFTER = frozenset("([:")
_TICK = "`"


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
        pending, begin, seen, stop = self._pending, 0, 0, len(self._pending)
        for found in _CANDIDATE.finditer(pending):
            at, end = found.span()
            self._code.feed(pending[seen:at])
            seen = at
            is_complete = found[0][-1] == _CLOSE[found[0][0]]
            marker = _parse_marker(found[0]) if is_complete and not self._is_index(pending, at, end) else None
            is_plain = marker is not None and _is_plain(found[0])
            if not last and (not is_complete or (is_plain and end == len(pending))):
                stop = at  # the text that follows decides
                break
            if marker is not None:
                if at > begin:
                    yield pending[begin:at]
                yield marker
                begin = end
        self._code.feed(pending[seen:stop])
        self._before = pending[stop - 1] if stop else self._before
        self._pending = pending[stop:]
        if stop > begin:
            yield pending[begin:stop]

    def _is_index(self, pending: str, at: int, end: int) -> bool:
        """Return whether `[3]` at this position is an index, a link or code."""
        before = pending[at - 1] if at else self._before
        is_marker = before in _ALLOWED_BEFORE and pending[end : end + 1] not in _FORBIDDEN_AFTER
        return _is_plain(pending[at:end]) and (not is_marker or self._code.is_open)


def _is_plain(text: str) -> bool:
    """Return whether this is `[3]`, which is a marker only in some places."""
    return text[0] == "[" and _DAGGER not in text


class _CodeSpans:
    """Tracks whether code is open: between backticks, inline or fenced."""

    def __init__(self) -> None:
        self._run = 0  # length of the current run of backticks
        self._open = 0  # number of backticks that opened the code

    def feed(self, text: str) -> None:
        if _TICK not in text and not self._run and not self._open:
            return
        for char in text:
            if char == _TICK:
                self._run += 1
                continue
            if self._run:
                closes = self._run == self._open or self._run >= 3 <= self._open
                self._open = 0 if closes else self._open or self._run
            if char == "\n" and self._open < 3:
                self._open = 0
            self._run = 0

    @property
    def is_open(self) -> bool:
        return bool(self._run or self._open)


def _parse_marker(text: str) -> CitationMarker | None:
    inner = text[1:-1].strip()
    number, _, remainder = inner.partition(_DAGGER)
    number = number.strip()
    if not (number.isascii() and number.isdigit() and len(number) <= _MAX_DIGITS):
        return None
    label, dagger, host = remainder.rpartition(_DAGGER)
    if dagger and label and host and not host.startswith("L"):
        return CitationMarker(text=text, cursor=int(number), host=host.strip().removeprefix("www."))
    line = _LINE_PATTERN.match(remainder)
    return CitationMarker(
        text=text, cursor=int(number), line=int(line[1]) if line else None, is_certain=_DAGGER in inner
    )


_SPACE = " "
_NO_SPACE_AFTER: Final = frozenset(" \t\n([{\"'“‘«")  # no space is inserted after these
_NO_SPACE_BEFORE: Final = frozenset(" \t\n.,;:!?)]}\"'”’»")  # a pending space is dropped before these
_URL_ESCAPES: Final = str.maketrans({char: f"%{ord(char):02X}" for char in '()<>[]"\\` '})


class CitationRewriter:
    """Rewrites the output of one turn."""

    reads_marks = True

    def __init__(self, pages: ResponsePages) -> None:
        self._pages = pages
        self._logprobs: list[Logprob] = []  # of pending text
        self._reset()

    def _reset(self) -> None:
        self._markers = CitationMarkers()
        self._length = 0  # characters of the part so far
        self._last_char = ""  # last character written
        self._has_pending_space = False  # a space was received and is held back
        self._dropped_marker = False  # the previous marker was removed
        self._last_url = ""  # the URL just cited, with no text after it

    def feed(self, deltas: Sequence[Delta]) -> list[Delta]:
        out: list[Delta] = []
        for delta in deltas:
            if type(delta) is Text:
                self._logprobs += delta.logprobs
                self._process(self._markers.feed(delta.text), out)
            elif isinstance(delta, CallDelta | CallDone):
                out.append(delta)  # belongs to a concurrent call
            elif isinstance(delta, Citation) and isinstance(delta.annotation, FileCitation):
                self._flush(out)
                out.append(Citation(replace(delta.annotation, index=self._length)))  # links have moved the text
            else:
                out += self.finish()
                out.append(delta)
        return out

    def finish(self) -> list[Delta]:
        out: list[Delta] = []
        self._flush(out)
        self._reset()
        return out

    def _flush(self, out: list[Delta]) -> None:
        self._process(self._markers.finish(), out)
        if self._has_pending_space and not self._dropped_marker:
            self._emit(_SPACE, out)
        self._has_pending_space = False
        if self._logprobs:
            self._emit("", out)

    def _process(self, pieces: Iterable[str | CitationMarker], out: list[Delta]) -> None:
        for piece in pieces:
            if isinstance(piece, str):
                self._write_text(piece, out)
            else:
                self._write_marker(piece, out)

    def _write_text(self, text: str, out: list[Delta]) -> None:
        if self._has_pending_space:
            if not (self._dropped_marker and text[0] in _NO_SPACE_BEFORE):
                text = _SPACE + text
            self._has_pending_space = False
        self._dropped_marker = False
        if text[-1] == _SPACE:
            text, self._has_pending_space = text[:-1], True
        if text:
            self._last_url = ""
            self._emit(text, out)

    def _write_marker(self, marker: CitationMarker, out: list[Delta]) -> None:
        source = self._find_source(marker)
        if source is None and not marker.is_certain:
            self._write_text(marker.text, out)
            return
        if source is None or source[0] == self._last_url:
            self._dropped_marker = True
            return
        url, title = source
        link = f"([{display_host(url)}]({url.translate(_URL_ESCAPES)}))"
        separator = (
            _SPACE if self._has_pending_space or (self._last_char and self._last_char not in _NO_SPACE_AFTER) else ""
        )
        self._has_pending_space = self._dropped_marker = False
        self._emit(separator + link, out)
        self._last_url = url
        annotation = UrlCitation(url=url, title=title, start_index=self._length - len(link), end_index=self._length)
        out.append(Citation(annotation))

    def _find_source(self, marker: CitationMarker) -> tuple[str, str] | None:
        if marker.host:
            return self._pages.find_linked(marker.cursor, marker.host)
        page = self._pages.get(marker.cursor)
        return None if page is None else page.find_source(marker.line)

    def _emit(self, text: str, out: list[Delta]) -> None:
        self._length += len(text)
        self._last_char = text[-1:] or self._last_char
        out.append(Text(text, tuple(self._logprobs)))
        self._logprobs.clear()
