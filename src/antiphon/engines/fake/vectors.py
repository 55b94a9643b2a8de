"""Embeddings without a model: the words of a text, each a direction of its own, so that like texts are near.

The same text always gives the same vector, in every process. A vector that is cut and made long again is a vector too.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b

DIMENSIONS = 64

_WORDS = re.compile(r"\w+")


def vector(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    """Of length 1."""
    words = Counter(_WORDS.findall(text.lower())) or Counter([text])
    sums = [0.0] * dimensions
    for word, times in sorted(words.items()):
        for place, sign in enumerate(_direction(word)[:dimensions]):
            sums[place] += sign * times
    if not any(sums):
        sums[0] = 1.0
    length = math.sqrt(math.fsum([number * number for number in sums]))
    return [number / length for number in sums]


def likeness(one: Sequence[float], other: Sequence[float]) -> float:
    """The cosine of the angle between two vectors of length 1."""
    return math.fsum(_products(one, other))


def _products(one: Sequence[float], other: Sequence[float]) -> Iterable[float]:
    return (left * right for left, right in zip(one, other, strict=True))


@lru_cache(maxsize=4096)
def _direction(word: str) -> tuple[int, ...]:
    digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=DIMENSIONS // 8).digest()
    return tuple(1 if byte >> bit & 1 else -1 for byte in digest for bit in range(8))
