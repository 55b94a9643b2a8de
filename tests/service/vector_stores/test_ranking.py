"""Fusing ranked lists, and scoring hits."""

import pytest

from antiphon.service.vector_stores.search import fuse, score_hits


def test_lists_are_fused_by_reciprocal_rank() -> None:
    assert fuse([(1.0, [1, 2, 3]), (1.0, [3, 2, 4])]) == [3, 2, 1, 4]
    assert fuse([(1.0, [1, 2]), (0.0, [2, 1])]) == [1, 2]
    assert fuse([(1.0, [1, 2]), (3.0, [2, 1])]) == [2, 1]
    assert fuse([]) == []


def test_scores_are_cosines_between_0_and_1_that_never_grow_down_the_list() -> None:
    cosines = {1: 0.4, 2: 0.9, 3: -0.2, 4: 1.001}
    assert score_hits([1, 2, 3], cosines, {}) == [0.9, 0.9, 0.0]
    assert score_hits([4], cosines, {}) == [1.0]


def test_a_hit_without_a_vector_is_scored_by_its_rank_below_1() -> None:
    assert score_hits([7, 8], {}, {7: 1, 8: 2}) == [pytest.approx(60 / 61), pytest.approx(60 / 62)]
