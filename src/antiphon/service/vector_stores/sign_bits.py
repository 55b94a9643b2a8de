"""The signs of vectors in memory, a bit for each number, which find the nearest vectors without reading all of them.

The number of signs in which two vectors differ estimates the angle between them. So the vectors that differ least from
a query are read from the store, and scored exactly. Vectors are little-endian 16-bit floats, of length 1.

`numpy_bits.py` does the same in a tenth of the time, where numpy is installed.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import accumulate
from operator import mul
from typing import Final, Protocol

NUMBER_BYTES: Final = 2
_SIGNS: Final = bytes(ord("1") if byte & 0x80 else ord("0") for byte in range(256))


class SignBits(Protocol):
    """Sign bits of vectors, numbered from 0; each belongs to a file, which is a number too. It never changes."""

    vector_bytes: int  # memory that a vector takes

    def __len__(self) -> int: ...

    def extend(self, files: Sequence[int], vectors: Sequence[bytes]) -> "SignBits":
        """Return the bits of all vectors, including new ones with their files."""

    def find_nearest(self, query: bytes, count: int, mask: bytes) -> Sequence[int]:
        """Return the numbers of the nearest vectors of files that the mask allows, `count` if there are that many."""

    def score(self, query: bytes, vectors: Sequence[bytes]) -> list[float]:
        """Return for each, which is one or several joined vectors, the greatest cosine with the query."""


class PythonBits:
    def __init__(self, files: Sequence[int] = (), bits: Sequence[int] = (), width: int = 0) -> None:
        self._files = files
        self._bits = bits
        self._width = width
        self.vector_bytes = 2 * width // 15 + 64  # integers have 30 bits in 4 bytes

    def __len__(self) -> int:
        return len(self._bits)

    def extend(self, files: Sequence[int], vectors: Sequence[bytes]) -> "PythonBits":
        width = len(vectors[0]) // NUMBER_BYTES if vectors else self._width
        return PythonBits([*self._files, *files], [*self._bits, *map(_read_signs, vectors)], width)

    def find_nearest(self, query: bytes, count: int, mask: bytes) -> Sequence[int]:
        signs = _read_signs(query)
        numbers: Iterable[int] = range(len(self))
        if 0 in mask:
            numbers = [number for number, file in enumerate(self._files) if mask[file]]
            distances = [(self._bits[number] ^ signs).bit_count() for number in numbers]
        else:
            distances = [(bits ^ signs).bit_count() for bits in self._bits]
        if len(distances) <= count:
            return [*numbers]
        bound, ties = _find_bound(distances, count)
        nearest = []
        for number, distance in zip(numbers, distances, strict=True):
            if distance < bound:
                nearest.append(number)
            elif distance == bound and ties:
                nearest.append(number)
                ties -= 1
        return nearest

    def score(self, query: bytes, vectors: Sequence[bytes]) -> list[float]:
        unpack = struct.Struct(f"<{len(query) // NUMBER_BYTES}e")
        numbers = unpack.unpack(query)
        return [max(sum(map(mul, numbers, one)) for one in unpack.iter_unpack(joined)) for joined in vectors]


def _read_signs(vector: bytes) -> int:
    return int(vector[1::NUMBER_BYTES].translate(_SIGNS), 2)


def _find_bound(distances: Sequence[int], count: int) -> tuple[int, int]:
    """Return the greatest distance of the `count` nearest, and how many of them have it."""
    frequencies = sorted(Counter(distances).items())
    totals = accumulate(frequency for _, frequency in frequencies)
    return next(
        (distance, count - total + frequency)
        for (distance, frequency), total in zip(frequencies, totals, strict=True)
        if total >= count
    )


def make_sign_bits() -> SignBits:
    """Return bits without vectors, with numpy if it is installed."""
    try:
        bits: SignBits = import_module("antiphon.service.vector_stores.numpy_bits").NumpyBits()
    except ModuleNotFoundError:
        return PythonBits()
    return bits
