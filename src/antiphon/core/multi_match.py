"""Finds the start of any of many strings in a text, including overlapping ones, in one pass without backtracking.

The strings are compiled to patterns with shared prefixes, so that each character decides the branch. Control strings
in prompts are broken up with a zero-width space, which is removed again from what models repeat.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import Final

GAP: Final = "\u200b"  # zero-width space; a tokenizer that does not know it treats it as a space
GAP_PREDECESSORS: Final = frozenset("<[]｜")  # a gap is inserted only after these: all control strings start with one

Tree = dict[str, "Tree"]  # by character; an empty tree is the end of a string

_MIN_BRANCHES: Final = 4  # number of branches from which a lookahead for their first characters pays off
_WINDOW_CHARS: Final = 32 * 1024  # searched per step: a few milliseconds at most, so that other threads can run


class _LazyPattern:
    """Compiled for the first text that contains its first character, since that takes milliseconds."""

    def __init__(self, source: str) -> None:
        self._source = source

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self._source)


class MultiStringMatcher:
    """A text without any of the first characters is rejected at almost no cost."""

    def __init__(self, strings: Iterable[str]) -> None:
        tree: Tree = {}
        needles = _drop_redundant(strings)
        self._longest = max(map(len, needles), default=0)
        for text in needles:
            branch = tree
            for char in text:
                branch = branch.setdefault(char, {})
        self._patterns = {first: _LazyPattern(_start_pattern(first, subtree)) for first, subtree in tree.items()}

    def has_match(self, text: str) -> bool:
        return any(first in text and pattern.compiled.search(text) for first, pattern in self._patterns.items())

    def find_starts(self, text: str) -> Iterator[int]:
        """Yield the start positions of all matches, unordered."""
        for first, pattern in self._patterns.items():
            if first in text:
                for start in range(0, len(text), _WINDOW_CHARS):
                    end = start + _WINDOW_CHARS
                    found = pattern.compiled.finditer(text, start, end + self._longest)
                    yield from [one.start() for one in found if one.start() < end]

    def insert_gaps(self, text: str) -> str:
        """Insert a gap after the first character of each match. Returns the same object if there is no match."""
        for first in self._patterns:
            if first in text:
                break
        else:
            return text
        if not (starts := sorted(self.find_starts(text))):
            return text
        ends = [0, *(start + 1 for start in starts), len(text)]
        return GAP.join([text[begin:end] for begin, end in pairwise(ends)])

    def replace_first_chars(self, text: str, replacement: str) -> str:
        for pattern in self._patterns.values():
            text = pattern.compiled.sub(lambda _: replacement, text)
        return text


def remove_gaps(text: str, previous: str = "") -> str:
    """Remove inserted gaps. `previous` is the character before the text."""
    head, *pieces = (previous + text).split(GAP)
    out, last = [head], head[-1:]
    for piece in pieces:
        if last not in GAP_PREDECESSORS:
            out.append(GAP)
            last = GAP
        out.append(piece)
        last = piece[-1:] or last
    return "".join(out)[len(previous) :]


def _drop_redundant(strings: Iterable[str]) -> list[str]:
    """Drop strings that start with another one, which precedes them in order: they are found with it."""
    needles: list[str] = []
    for text in sorted({*strings} - {""}):
        if not needles or not text.startswith(needles[-1]):
            needles.append(text)
    return needles


def _start_pattern(first: str, subtree: Tree) -> str:
    return re.escape(first) + (f"(?={_branch_pattern(subtree)})" if subtree else "")


def _branch_pattern(tree: Tree) -> str:
    branches = []
    for first, subtree in tree.items():
        text = first
        while len(subtree) == 1:
            ((char, subtree),) = subtree.items()
            text += char
        branches.append(re.escape(text) + (_branch_pattern(subtree) if subtree else ""))
    if len(branches) == 1:
        return branches[0]
    lookahead = f"(?=[{re.escape(''.join(tree))}])" if len(branches) >= _MIN_BRANCHES else ""
    return f"{lookahead}(?:{'|'.join(branches)})"
