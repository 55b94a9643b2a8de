"""Rendered text → what /tokenize takes: ids of control tokens where the template put them, strings everywhere else.

The strings are tokenised without special tokens, so that what users, tools and files wrote stays text, whatever it
looks like. Text on both sides of a segment's border is tokenised together, as the model saw it in training.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from antiphon.core.prompt import Segment
from antiphon.engines.gguf import Header

Pieces = list[str | int]

_CLOSES = {"<": ">", "[": "]"}


class Vocabulary:
    """The special tokens of a model."""

    def __init__(self, header: Header) -> None:
        self._special = {**header.marks, **header.control}
        self._marks = header.marks
        self._longest = max(map(len, header.marks), default=0)
        longest_first = sorted(self._special, key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, longest_first))})" if longest_first else "(?!)()")
        self._split = lru_cache(maxsize=256)(self._pattern.split)  # of a template's own words, which repeat

    @property
    def special(self) -> list[str]:
        return list(self._special)

    def pieces(self, segments: tuple[Segment, ...]) -> Pieces:
        pieces: Pieces = []
        text: list[str] = []
        for segment in segments:
            if not segment.control:
                text.append(segment.text)
                continue
            for part in self._split(segment.text):
                if part in self._special:
                    pieces += self._plain("".join(text))
                    pieces.append(self._special[part])
                    text.clear()
                else:
                    text.append(part)
        return pieces + list(self._plain("".join(text)))

    def _plain(self, text: str) -> Iterator[str]:
        """The text, cut within every mark in it: llama.cpp makes tokens of marks even where it makes none of control
        tokens, unless it never sees them whole."""
        begun = 0
        for cut in sorted(self._cuts(text)):
            yield text[begun:cut]
            begun = cut
        if begun < len(text):
            yield text[begun:]

    def _cuts(self, text: str) -> Iterator[int]:
        if not self._marks:
            return
        for opens, closes in _CLOSES.items():
            at = text.find(opens)
            while at >= 0:
                end = text.find(closes, at + 1, at + self._longest)
                if end >= 0 and text[at : end + 1] in self._marks:
                    yield at + 1
                at = text.find(opens, at + 1)
