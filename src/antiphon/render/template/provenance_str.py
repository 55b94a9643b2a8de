"""Strings that know which of their characters the template itself wrote.

Trust is what is traced, not taint: a literal of the template is its own, everything else is a
client's, and an operation that is not followed here loses the mark. So what goes wrong
goes wrong towards plain text, never towards a control token that somebody forged.
A client's text stays the very string it is, and a template may look into it as it likes.
"""

from collections.abc import Iterable
from typing import Any, SupportsIndex

from antiphon.core.prompt import Segment


class Traced(str):
    """Text made of segments. `Traced(text)` is nobody's own: only `own` gives the mark."""

    __slots__ = ("_segments",)
    _segments: tuple[Segment, ...]

    def __new__(cls, text: object = "") -> "Traced":
        plain = str(text)
        return _made(plain, (Segment(str.__str__(plain), False),))

    def __str__(self) -> str:
        """Itself: compiled templates pass every value through str()."""
        return self

    def __add__(self, other: str) -> str:
        if not isinstance(other, str):
            return NotImplemented
        return _made(str.__add__(self, other), self._segments + marks(other))

    def __radd__(self, other: str) -> str:
        if not isinstance(other, str):
            return NotImplemented
        return _made(str.__add__(other, self), marks(other) + self._segments)

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        if not isinstance(key, slice) or key.step not in (None, 1):
            return str.__getitem__(self, key)
        start, stop, _ = key.indices(len(self))
        return self._cut(start, max(start, stop))

    def strip(self, chars: str | None = None, /) -> str:
        start = len(self) - len(str.lstrip(self, chars))
        return self._cut(start, max(start, len(str.rstrip(self, chars))))

    def lstrip(self, chars: str | None = None, /) -> str:
        return self._cut(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None, /) -> str:
        return self._cut(0, len(str.rstrip(self, chars)))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._cuts(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._cuts(str.rsplit(self, sep, maxsplit), sep)

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        return join(self.split(old, count), new) if old else str.replace(self, old, new, count)

    def join(self, parts: Iterable[str], /) -> str:
        return join(parts, self)

    def _cuts(self, pieces: list[str], sep: str | None) -> list[str]:
        """The pieces of a split, each with its own marks."""
        found: list[str] = []
        end = 0
        for piece in pieces:
            start = self.index(piece, end)
            found.append(self._cut(start, start + len(piece)))
            end = start + len(piece) + len(sep or "")
        return found

    def _cut(self, start: int, stop: int) -> "Traced":
        segments: list[Segment] = []
        position = 0
        for segment in self._segments:
            begin, end = max(start - position, 0), min(stop - position, len(segment.text))
            if begin < end:
                segments.append(Segment(segment.text[begin:end], segment.control))
            position += len(segment.text)
        return _made(str.__getitem__(self, slice(start, stop)), tuple(segments))


def _made(text: str, segments: tuple[Segment, ...]) -> Traced:
    traced = str.__new__(Traced, text)
    traced._segments = segments
    return traced


def own(text: str) -> Traced:
    """The template's own text, which may become control tokens."""
    return _made(text, (Segment(str.__str__(text), True),))


def is_own(value: object) -> bool:
    return isinstance(value, Traced) and all(segment.control for segment in value._segments)


def join(pieces: Iterable[Any], separator: str = "") -> Traced:
    segments: list[Segment] = []
    for number, piece in enumerate(pieces):
        if number and separator:
            segments += marks(separator)
        segments += marks(piece if isinstance(piece, str) else str(piece))
    return _made("".join([segment.text for segment in segments]), tuple(segments))


def marks(text: str) -> tuple[Segment, ...]:
    return text._segments if isinstance(text, Traced) else (Segment(text, False),)


def merge(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Neighbours of one kind become one segment; empty ones go."""
    merged: list[Segment] = []
    texts: list[str] = []
    control = False
    for segment in segments:
        if segment.text and segment.control != control:
            if texts:
                merged.append(Segment("".join(texts), control))
            texts, control = [], segment.control
        if segment.text:
            texts.append(segment.text)
    if texts:
        merged.append(Segment("".join(texts), control))
    return tuple(merged)
