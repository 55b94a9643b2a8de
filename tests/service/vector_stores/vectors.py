"""Vectors for the tests of searches: seeded ones, and an embedder that hashes words."""

import random
import re
import struct
from collections.abc import Sequence
from math import sqrt

from antiphon.errors import EngineFailed

DIMENSIONS = 64


def pack_unit(numbers: Sequence[float]) -> bytes:
    """Pack a vector of length 1 into 16-bit floats."""
    length = sqrt(sum(number * number for number in numbers))
    return struct.pack(f"<{len(numbers)}e", *[number / length for number in numbers])


def draw_clustered(rng: random.Random, count: int, dimensions: int, clusters: int = 20) -> list[bytes]:
    """Draw vectors that lie around some centres, as those of texts do."""
    centres = [[rng.gauss(0, 1) for _ in range(dimensions)] for _ in range(clusters)]
    return [pack_unit([number + rng.gauss(0, 1) for number in rng.choice(centres)]) for _ in range(count)]


def draw_near(rng: random.Random, vector: bytes) -> bytes:
    """Draw a vector whose cosine with another one is about 0.8."""
    numbers = struct.unpack(f"<{len(vector) // 2}e", vector)
    return pack_unit([number + rng.gauss(0, 0.75 / sqrt(len(numbers))) for number in numbers])


class WordEmbedder:
    """Embeds a text as the sum of vectors drawn for its words, so texts with common words are near each other."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, tuple[str, ...]]] = []
        self.fails = False

    async def embed(self, tenant: str, model: str, texts: Sequence[str]) -> list[bytes]:
        self.calls.append((tenant, model, tuple(texts)))
        if self.fails:
            raise EngineFailed("The model is gone.")
        return [embed_words(text, model) for text in texts]


def embed_words(text: str, model: str = "embedder") -> bytes:
    total = [0.0] * DIMENSIONS
    for term in re.findall(r"\w+", text.lower()) or [""]:
        rng = random.Random(f"{model} {term}")
        total = [number + rng.gauss(0, 1) for number in total]
    return pack_unit(total)
