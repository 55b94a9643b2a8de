"""Replace citation markers in the output of a model by Markdown links and url_citation annotations with their position.

    Otters eat fish 【3†L10-L12】.   →   Otters eat fish ([otters.example](https://otters.example/food)).
                                                        └────────── start_index … end_index ──────┘

Indexes count code points of the open text part; each item begins a new part. A marker that names no page which was read
is removed, with the space before it; if it may not be a marker at all, it stays.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from antiphon.core.deltas import CallDelta, CallDone, Citation, Delta, Text
from antiphon.protocol.types.items import UrlCitation
from antiphon.protocol.types.parts import Logprob
from antiphon.tools.web_search.citation_markers import CitationMarker, CitationMarkers
from antiphon.tools.web_search.page_view import display_host
from antiphon.tools.web_search.response_pages import ResponsePages

_SPACE = " "
_NO_SPACE_AFTER: Final = frozenset(" \t\n([{\"'“‘«")  # no space is inserted after these
_NO_SPACE_BEFORE: Final = frozenset(" \t\n.,;:!?)]}\"'”’»")  # a pending space is dropped before these
_URL_ESCAPES: Final = str.maketrans({char: f"%{ord(char):02X}" for char in '()<>[]"\\` '})


class CitationRewriter:
    """Rewrites the output of one turn."""

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
            else:
                out += self.finish()
                out.append(delta)
        return out

    def finish(self) -> list[Delta]:
        out: list[Delta] = []
        self._process(self._markers.finish(), out)
        if self._has_pending_space and not self._dropped_marker:
            self._emit(_SPACE, out)
        if self._logprobs:
            self._emit("", out)
        self._reset()
        return out

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
