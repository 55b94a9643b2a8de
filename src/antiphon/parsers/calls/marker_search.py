"""Find the first of several markers in a text, from any position on. Each range is searched once per marker.

A possible prefix of a marker at the end of the text is not reported as text, because more may follow. In short texts
all markers are compared at every position where one may begin.
"""

from typing import Final

_SHORT_TEXT: Final = 256
_NO_POSITIONS: Final[dict[str, int]] = {}


class MarkerFinder:
    """Finds any of a fixed set of markers."""

    def __init__(self, *markers: str) -> None:
        """No marker may be a prefix of another: the decision would depend on text that may arrive later."""
        if any(one != other and other.startswith(one) for one in markers for other in markers) or "" in markers:
            raise ValueError(f"ambiguous marks: {markers}")
        self._markers = markers
        self._max_length = max(map(len, markers), default=0)
        self.first_chars = frozenset(marker[0] for marker in markers)
        self.prefixes = frozenset(marker[:end] for marker in markers for end in range(1, len(marker)))
        self.prefixes_and_markers = self.prefixes.union(markers)
        self.min_length = min(map(len, markers), default=0)
        share_first = len(self.first_chars) == 1 and all(
            marker.rfind(marker[0]) == 0 for marker in markers
        )  # and none contains another
        self._shared_first = markers[0][0] if share_first else ""

    def may_occur_in(self, text: str) -> bool:
        """Quick check whether a marker, or the beginning of one, may occur in the text."""
        return not self.first_chars.isdisjoint(text)

    def search(self, text: str) -> "MarkerSearch":
        if self._shared_first and len(text) < _SHORT_TEXT:
            return MarkerSearch(self, text, _NO_POSITIONS, -1)
        return MarkerSearch(
            self, text, {marker: text.find(marker) for marker in self._markers}, self.find_partial(text)
        )

    def find_in_short(self, text: str, at: int) -> tuple[int, str]:
        """Implement `MarkerSearch.find_next` for short texts."""
        position = text.find(self._shared_first, at)
        while position >= 0:
            if text.startswith(self._markers, position):
                for marker in self._markers:
                    if text.startswith(marker, position):
                        return position, marker
            if text[position:] in self.prefixes:
                return position, ""
            position = text.find(self._shared_first, position + 1)
        return len(text), ""

    def is_prefix(self, text: str, at: int) -> bool:
        """Whether the text from `at` to its end is a proper prefix of a marker."""
        return len(text) - at < self._max_length and text[at:] in self.prefixes

    def find_partial(self, text: str) -> int:
        """Return the position where a partial marker at the end of the text begins; the length of the text if there is
        none.
        """
        begin = max(0, len(text) - self._max_length + 1)
        tail = text[begin:]
        if not self.first_chars.isdisjoint(tail):
            for at, char in enumerate(tail):
                if char in self.first_chars and tail[at:] in self.prefixes:
                    return begin + at
        return len(text)


class MarkerSearch:
    """A search through one text from front to back."""

    def __init__(self, finder: MarkerFinder, text: str, positions: dict[str, int], partial_at: int) -> None:
        """`positions`: the next known position of each marker; `partial_at`: -1 if the text is short."""
        self._finder = finder
        self._text = text
        self._positions = positions
        self._partial_at = partial_at

    def find_next(self, at: int) -> tuple[int, str]:
        """Return position and text of the next marker; without one, the position of a partial marker or the end, and
        "".
        """
        if self._partial_at < 0:
            return self._finder.find_in_short(self._text, at)
        first, found = len(self._text), ""
        for marker, position in self._positions.items():
            if -1 < position < at:
                self._positions[marker] = position = self._text.find(marker, at)
            if -1 < position < first:
                first, found = position, marker
        return (first, found) if found else (max(at, self._partial_at), "")
