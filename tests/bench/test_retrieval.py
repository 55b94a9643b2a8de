"""The measure of rankings, and the measurement of searches with a small store."""

from math import log2

import pytest

from bench.retrieval import ndcg

pytestmark = pytest.mark.anyio


def test_ndcg_compares_a_ranking_with_the_ideal_one() -> None:
    grades = {"a": 2.0, "b": 1.0, "c": 0.0, "d": -1.0}
    assert ndcg(["a", "b", "c"], grades) == 1.0
    assert ndcg(["d", "c", "x"], grades) == 0.0
    assert ndcg(["b", "a"], grades) == pytest.approx((1 + 2 / log2(3)) / (2 + 1 / log2(3)))
    assert ndcg(["x"] * 10 + ["a"], grades) == 0.0


async def test_a_drawn_store_is_searched_and_nothing_near_is_missed() -> None:
    pytest.importorskip("numpy")
    from bench.search import measure_latency

    figures = {row.name: row.figures[0] for row in await measure_latency(300)}
    assert figures["300 chunks: recall@10"] == 1.0
    assert len(figures) == 11


async def test_a_drawn_store_is_searched_beside_another_one() -> None:
    pytest.importorskip("numpy")
    from bench.search import measure_latency

    figures = {row.name: row.figures[0] for row in await measure_latency(100, others=200)}
    assert figures["100 chunks beside 200: recall@10"] == 1.0
