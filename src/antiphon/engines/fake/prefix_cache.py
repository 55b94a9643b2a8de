"""How much of a prompt an engine would have had in its prefix cache: bounded, and cheap to ask.

It remembers the beginnings of the last prompts and computes nothing; it only says what would have been saved.
"""

from collections import OrderedDict

PROMPTS = 64
CHARACTERS = 131_072  # of each: a context of 32,768 tokens


class PrefixCache:
    def __init__(self) -> None:
        self._recent: OrderedDict[tuple[str | None, str], None] = OrderedDict()

    def match(self, text: str, salt: str | None) -> int:
        """Characters that this prompt has in common with one before it under the same salt; remembers it."""
        text = text[:CHARACTERS]
        best = len(text) if (salt, text) in self._recent else self._longest(text, salt)
        self._recent[salt, text] = None
        self._recent.move_to_end((salt, text))
        if len(self._recent) > PROMPTS:
            self._recent.popitem(last=False)
        return best

    def _longest(self, text: str, salt: str | None) -> int:
        best = 0
        for key, earlier in self._recent:
            # A longer match must have the next character in common: most do not, and cost nothing.
            if key == salt and text[best : best + 1] == earlier[best : best + 1] and text[:best] == earlier[:best]:
                best = _common(text, earlier, best)
        return best


def _common(one: str, other: str, low: int) -> int:
    """The length of the common beginning, known to be at least `low`, by halving."""
    high = min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
