"""The ranking of chunks by BM25. `tests/contracts/store/test_vector_index.py` tests `stores/sql/text_index.py`."""

import struct

import pytest

from antiphon.stores.sql.bm25 import count_occurrences, rank_candidates

ONE, TWO = 0.6079271, 0.7599089  # ts_rank of a word that is in a text once, twice


@pytest.mark.parametrize("count", [1, 2, 3, 10, 50, 100])
def test_occurrences_are_counted_by_their_rank(count: int) -> None:
    rank = sum(1 / n**2 for n in range(1, count + 1)) / 1.64493406685
    [single] = struct.unpack("<f", struct.pack("<f", rank))
    assert count_occurrences(single) == pytest.approx(count, rel=0.01)


def test_scores_are_those_of_the_formula() -> None:
    rows = [(1, 100, ONE, 0.0), (2, 100, TWO, 0.0), (3, 100, 0.0, ONE)]
    ranked = dict(rank_candidates(rows, [None, 50.0], 100))
    assert ranked[1] == pytest.approx(3.6988 / 2.2, rel=1e-3)  # ln(1 + 98.5 / 2.5) / (1 + 1.2)
    assert ranked[2] == pytest.approx(3.6988 * 2 / 3.2, rel=1e-2)
    assert ranked[3] == pytest.approx(0.6931 / 2.2, rel=1e-3)


def test_the_rarer_word_and_the_shorter_text_come_first() -> None:
    rows = [(1, 100, ONE, 0.0), (2, 100, 0.0, ONE), (3, 50, 0.0, ONE), (4, 100, ONE, 0.0)]
    assert [chunk for chunk, _ in rank_candidates(rows, [90.0, 3.0], 100)] == [3, 2, 1, 4]
    assert rank_candidates([], [], 0) == []


def test_an_outdated_number_of_chunks_gives_no_negative_score() -> None:
    assert rank_candidates([(1, 10, ONE)], [1000.0], 5)[0][1] > 0
