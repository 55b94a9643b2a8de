"""Rendered text → what /tokenize takes: ids of control tokens where the template put them, strings everywhere else.

The strings are tokenised without special tokens, so that what users, tools and files wrote stays text, whatever it
looks like. Text on both sides of a segment's border is tokenised together, as the model saw it in training.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from antiphon.core.multi_match import Occurrences
from antiphon.core.prompt import Segment
from antiphon.engines.gguf import Header

Pieces = list[str | int]


class Vocabulary:
    """The special tokens of a model."""

    def __init__(self, header: Header) -> None:
        self._special = {**header.marks, **header.control}
        self._seen = Occurrences(self._special)
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
        """The text, cut within whatever looks special in it: llama.cpp makes tokens of marks even where it makes none
        of control tokens, and takes some control tokens for marks, unless it never sees them whole."""
        begun = 0
        for place in sorted(self._seen.places(text)):
            yield text[begun : place + 1]
            begun = place + 1
        if begun < len(text):
            yield text[begun:]
