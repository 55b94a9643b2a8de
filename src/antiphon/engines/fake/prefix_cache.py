"""Simulation of an engine's prefix cache: how much of a prompt would have been cached. Bounded and cheap.

It stores the beginnings of the latest prompts and computes nothing else.
"""

from collections import OrderedDict

MAX_PROMPTS = 64
MAX_PROMPT_CHARS = 131_072  # per prompt: 32,768 tokens of four characters


class PrefixCache:
    def __init__(self) -> None:
        self._recent: OrderedDict[tuple[str | None, str], None] = OrderedDict()

    def match(self, text: str, salt: str | None) -> int:
        """Return the length in characters of the longest prefix shared with an earlier prompt of the same salt, and
        store this one.
        """
        text = text[:MAX_PROMPT_CHARS]
        best = len(text) if (salt, text) in self._recent else self._longest_match(text, salt)
        self._recent[salt, text] = None
        self._recent.move_to_end((salt, text))
        if len(self._recent) > MAX_PROMPTS:
            self._recent.popitem(last=False)
        return best

    def _longest_match(self, text: str, salt: str | None) -> int:
        best = 0
        for key, earlier in self._recent:
            # A longer match must share the next character; this check rejects most prompts at no cost.
            if key == salt and text[best : best + 1] == earlier[best : best + 1] and text[:best] == earlier[:best]:
                best = _common_prefix_length(text, earlier, best)
        return best


def _common_prefix_length(one: str, other: str, low: int) -> int:
    """Return the length of the common prefix, at least `low`, by bisection."""
    high = min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
