"""Ranks hits of several searches together, and scores them.

Ranked lists are fused by reciprocal rank (Cormack, Clarke and Büttcher, SIGIR 2009), which needs no common scale. The
score of a hit is its cosine with the query, so that a threshold means the same for every search.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate

_K = 60  # of reciprocal rank fusion, as in the paper


def fuse(lists: Sequence[tuple[float, Sequence[int]]]) -> list[int]:
    """Return the members of lists with their weights, best first."""
    totals: defaultdict[int, float] = defaultdict(float)
    for weight, ranked in lists:
        for rank, member in enumerate(ranked, 1):
            totals[member] += weight / (_K + rank)
    return sorted(totals, key=lambda member: -totals[member])


def score_hits(hits: Sequence[int], cosines: Mapping[int, float], ranks: Mapping[int, int]) -> list[float]:
    """Return scores from 0 to 1 for ranked hits, of which none is below that of a later hit.

    A hit without a cosine has one by its rank in a text index, which begins with 1.
    """
    scores = [min(max(cosines[hit], 0.0), 1.0) if hit in cosines else _K / (_K + ranks[hit]) for hit in hits]
    return [*accumulate(reversed(scores), max)][::-1]
