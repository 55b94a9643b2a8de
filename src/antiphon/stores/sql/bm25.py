"""Okapi BM25 (Robertson and Zaragoza, 2009) over chunks that PostgreSQL's text index has found."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

_K1, _B = 1.2, 0.75  # as in FTS5
_RANK_LIMIT = math.pi**2 / 6


def rank_candidates(
    rows: Sequence[tuple[Any, ...]], frequencies: Sequence[float | None], chunks: int
) -> list[tuple[int, float]]:
    """Return chunks and their scores, best first.

    A row has a chunk, the size of its text, and for each word of the query its `ts_rank` with weights of 1.
    `frequencies`: in how many of all `chunks` each word is; None if all of these are among the rows.
    """
    if not rows:
        return []
    _, sizes, *columns = zip(*rows, strict=True)
    found = [len(rows) - column.count(0.0) for column in columns]
    weights = [
        _weight(own if count is None else max(own, count), chunks)
        for own, count in zip(found, frequencies, strict=True)
    ]
    constant, slope = _K1 * (1 - _B), _K1 * _B * len(rows) / sum(sizes)
    scores = [(chunk, _score(ranks, weights, constant + slope * size)) for chunk, size, *ranks in rows]
    return sorted(scores, key=lambda scored: (-scored[1], scored[0]))


def _weight(count: float, chunks: int) -> float:
    return math.log(1 + max(chunks - count + 0.5, 0.5) / (count + 0.5))


def _score(ranks: Sequence[float], weights: Sequence[float], norm: float) -> float:
    score = 0.0
    for rank, weight in zip(ranks, weights, strict=True):
        if rank:
            count = count_occurrences(rank)
            score += weight * count / (count + norm)
    return score


@lru_cache(1024)
def count_occurrences(rank: float) -> int:
    """Return how often a word is in a text, from its `ts_rank`: 1 + 1/4 + 1/9 … for each occurrence, divided by the
    limit of this series. What is missing to the limit after n of them is nearly 1 / (n + 1/2).

    No function of PostgreSQL counts the occurrences of one word faster.
    """
    return round(1 / (_RANK_LIMIT * max(1 - rank, 1e-4)) - 0.5)
