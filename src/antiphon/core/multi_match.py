"""Finds where any of many strings begins in a text, those that overlap too: one pass, and no way to go back.

The strings become patterns with their common beginnings told once, so that each character decides.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

Tree = dict[str, "Tree"]  # by character; an empty one is the end of a string

_FORK: Final = 4  # from so many ways on it pays to ask first whether any can be gone
_STRETCH: Final = (
    32 * 1024
)  # characters that are searched in one go, in some milliseconds at most: others may want to work


class Occurrences:
    """A text in which none of their first characters is costs next to nothing."""

    def __init__(self, strings: Iterable[str]) -> None:
        tree: Tree = {}
        listed = _shortest(strings)
        self._longest = max(map(len, listed), default=0)
        for text in listed:
            branch = tree
            for char in text:
                branch = branch.setdefault(char, {})
        self._patterns = {first: re.compile(_beginning(first, rest)) for first, rest in tree.items()}

    def any_in(self, text: str) -> bool:
        return any(first in text and pattern.search(text) for first, pattern in self._patterns.items())

    def places(self, text: str) -> Iterator[int]:
        """Where they begin, in no order."""
        for first, pattern in self._patterns.items():
            if first in text:
                for start in range(0, len(text), _STRETCH):
                    end = start + _STRETCH
                    found = pattern.finditer(text, start, end + self._longest)
                    yield from [one.start() for one in found if one.start() < end]

    def broken(self, text: str, gap: str) -> str:
        """With a gap after the first character of each; the very text if there is none."""
        for first in self._patterns:
            if first in text:
                break
        else:
            return text
        places = sorted(self.places(text))
        if not places:
            return text
        ends = [0, *(place + 1 for place in places), len(text)]
        return gap.join([text[begin:end] for begin, end in pairwise(ends)])

    def changed(self, text: str, first: str) -> str:
        """With something else in place of the first character of each."""
        for pattern in self._patterns.values():
            text = pattern.sub(lambda _: first, text)
        return text


def _shortest(strings: Iterable[str]) -> list[str]:
    """Without those that begin with another one: they are found with it."""
    kept: list[str] = []
    for text in sorted({*strings} - {""}, key=len):
        if not text.startswith(tuple(kept)):
            kept.append(text)
    return kept


def _beginning(first: str, rest: Tree) -> str:
    return re.escape(first) + (f"(?={_written(rest)})" if rest else "")


def _written(tree: Tree) -> str:
    ways = []
    for first, rest in tree.items():
        text = first
        while len(rest) == 1:
            ((char, rest),) = rest.items()
            text += char
        ways.append(re.escape(text) + (_written(rest) if rest else ""))
    if len(ways) == 1:
        return ways[0]
    ahead = f"(?=[{re.escape(''.join(tree))}])" if len(ways) >= _FORK else ""
    return f"{ahead}(?:{'|'.join(ways)})"
