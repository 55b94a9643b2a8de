"""`SignBits` with numpy, which the extra of this name installs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

_WORD_BYTES = 8  # of the integers that bits are compared in


class NumpyBits:
    """Sign bits as one array per 64 dimensions: numpy is fastest on arrays without short rows."""

    def __init__(self, files: Any = None, columns: Sequence[Any] = ()) -> None:
        self._files = np.empty(0, np.int32) if files is None else files
        self._columns = columns
        self.vector_bytes = _WORD_BYTES * len(columns) + 4

    def __len__(self) -> int:
        return len(self._files)

    def extend(self, files: Sequence[int], vectors: Sequence[bytes]) -> "NumpyBits":
        columns = _read_signs(vectors)
        if self._columns and vectors:
            columns = [np.concatenate(pair) for pair in zip(self._columns, columns, strict=True)]
        return NumpyBits(np.concatenate([self._files, np.array(files, np.int32)]), columns or self._columns)

    def find_nearest(self, query: bytes, count: int, mask: bytes) -> Sequence[int]:
        distances = np.zeros(len(self), np.uint16)
        for column, signs in zip(self._columns, _read_signs([query]), strict=False):  # there are no columns yet
            distances += np.bitwise_count(column ^ signs)
        numbers: Any = None
        if 0 in mask:
            numbers = np.flatnonzero(np.frombuffer(mask, np.uint8)[self._files])
            distances = distances[numbers]
        if len(distances) > count:
            bound = int(np.searchsorted(np.cumsum(np.bincount(distances)), count))
            nearer = np.flatnonzero(distances < bound)
            nearest = np.sort(np.concatenate([nearer, np.flatnonzero(distances == bound)[: count - len(nearer)]]))
        else:
            nearest = np.arange(len(distances))
        found: list[int] = (nearest if numbers is None else numbers[nearest]).tolist()
        return found

    def score(self, query: bytes, vectors: Sequence[bytes]) -> list[float]:
        if not vectors:
            return []
        numbers = np.frombuffer(query, "<f2").astype(np.float32)
        rows = np.frombuffer(b"".join(vectors), "<f2").reshape(-1, len(numbers)).astype(np.float32)
        starts = np.cumsum([0, *[len(joined) // len(query) for joined in vectors[:-1]]])
        scores: list[float] = np.maximum.reduceat(rows @ numbers, starts).tolist()
        return scores


def _read_signs(vectors: Sequence[bytes]) -> list[Any]:
    """Return the signs of vectors as 64-bit integers, in one array per 64 dimensions."""
    if not vectors:
        return []
    signs = np.frombuffer(b"".join(vectors), np.uint8).reshape(len(vectors), -1)[:, 1::2] >> 7
    packed = np.packbits(signs, axis=1)
    packed = np.pad(packed, ((0, 0), (0, -packed.shape[1] % _WORD_BYTES)))
    return [np.ascontiguousarray(column) for column in packed.view(np.uint64).T]
