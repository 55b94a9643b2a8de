"""Strings that record which of their characters the template itself wrote.

Trust is traced, not taint: literals of the template are trusted, all other text belongs to a client, and an operation
that is not traced here loses the trust. Mistakes therefore yield plain text, never a forged control token. Client text
stays an ordinary `str`, and a template may inspect it freely.
"""

from collections.abc import Iterable
from typing import Any, SupportsIndex

from antiphon.core.prompt import Segment


class ProvenanceStr(str):
    """Text made of segments. `ProvenanceStr(text)` is untrusted: only `trust` creates trusted text."""

    __slots__ = ("_segments",)
    _segments: tuple[Segment, ...]

    def __new__(cls, text: object = "") -> "ProvenanceStr":
        plain = str(text)
        return _build(plain, (Segment(str.__str__(plain), False),))

    def __str__(self) -> str:
        """Return self: compiled templates pass every value through str()."""
        return self

    def __add__(self, other: str) -> str:
        if not isinstance(other, str):
            return NotImplemented
        return _build(str.__add__(self, other), self._segments + get_segments(other))

    def __radd__(self, other: str) -> str:
        if not isinstance(other, str):
            return NotImplemented
        return _build(str.__add__(other, self), get_segments(other) + self._segments)

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        if not isinstance(key, slice) or key.step not in (None, 1):
            return str.__getitem__(self, key)
        start, stop, _ = key.indices(len(self))
        return self._slice(start, max(start, stop))

    def strip(self, chars: str | None = None, /) -> str:
        start = len(self) - len(str.lstrip(self, chars))
        return self._slice(start, max(start, len(str.rstrip(self, chars))))

    def lstrip(self, chars: str | None = None, /) -> str:
        return self._slice(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None, /) -> str:
        return self._slice(0, len(str.rstrip(self, chars)))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._slice_pieces(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._slice_pieces(str.rsplit(self, sep, maxsplit), sep)

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        return join_traced(self.split(old, count), new) if old else str.replace(self, old, new, count)

    def join(self, parts: Iterable[str], /) -> str:
        return join_traced(parts, self)

    def _slice_pieces(self, pieces: list[str], sep: str | None) -> list[str]:
        """Return the pieces of a split, each with its own segments."""
        found: list[str] = []
        end = 0
        for piece in pieces:
            start = self.index(piece, end)
            found.append(self._slice(start, start + len(piece)))
            end = start + len(piece) + len(sep or "")
        return found

    def _slice(self, start: int, stop: int) -> "ProvenanceStr":
        segments: list[Segment] = []
        position = 0
        for segment in self._segments:
            begin, end = max(start - position, 0), min(stop - position, len(segment.text))
            if begin < end:
                segments.append(Segment(segment.text[begin:end], segment.control))
            position += len(segment.text)
        return _build(str.__getitem__(self, slice(start, stop)), tuple(segments))


def _build(text: str, segments: tuple[Segment, ...]) -> ProvenanceStr:
    traced = str.__new__(ProvenanceStr, text)
    traced._segments = segments
    return traced


def trust(text: str) -> ProvenanceStr:
    """Mark text as written by the template; it may become control tokens."""
    return _build(text, (Segment(str.__str__(text), True),))


def is_trusted(value: object) -> bool:
    return isinstance(value, ProvenanceStr) and all(segment.control for segment in value._segments)


def join_traced(pieces: Iterable[Any], separator: str = "") -> ProvenanceStr:
    """Join pieces and keep the segments of each."""
    segments: list[Segment] = []
    for number, piece in enumerate(pieces):
        if number and separator:
            segments += get_segments(separator)
        segments += get_segments(piece if isinstance(piece, str) else str(piece))
    return _build("".join([segment.text for segment in segments]), tuple(segments))


def get_segments(text: str) -> tuple[Segment, ...]:
    return text._segments if isinstance(text, ProvenanceStr) else (Segment(text, False),)


def merge_segments(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Merge adjacent segments of one kind and drop empty ones."""
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
