"""Sign bits of vectors, in Python and with numpy, which find the same.

Covers `service/vector_stores/sign_bits.py` and `service/vector_stores/numpy_bits.py`.
"""

import random
import struct
import sys
from collections.abc import Callable
from functools import cache

import pytest

from antiphon.service.vector_stores.sign_bits import PythonBits, SignBits, make_sign_bits
from tests.service.vector_stores.vectors import draw_clustered, draw_near, pack_unit

MakeBits = Callable[[], SignBits]


@pytest.fixture(params=["python", "numpy"])
def make_bits(request: pytest.FixtureRequest) -> MakeBits:
    if request.param == "python":
        return PythonBits
    pytest.importorskip("numpy")
    from antiphon.service.vector_stores.numpy_bits import NumpyBits

    return NumpyBits


def fill(bits: SignBits, vectors: list[bytes], files: list[int] | None = None) -> SignBits:
    return bits.extend(files or [0] * len(vectors), vectors)


def test_the_nearest_vectors_are_those_with_the_most_equal_signs(make_bits: MakeBits) -> None:
    vectors = [pack_unit(numbers) for numbers in ([1, 1, 1], [1, 1, -1], [-1, -1, -1], [1, -1, -1])]
    bits = fill(make_bits(), vectors)
    assert len(bits) == 4
    assert [*bits.find_nearest(vectors[0], 1, b"\1")] == [0]
    assert [*bits.find_nearest(vectors[0], 2, b"\1")] == [0, 1]
    assert [*bits.find_nearest(vectors[2], 2, b"\1")] == [2, 3]
    assert [*bits.find_nearest(vectors[2], 9, b"\1")] == [0, 1, 2, 3]


def test_the_first_of_equally_near_vectors_are_found(make_bits: MakeBits) -> None:
    bits = fill(make_bits(), [pack_unit([1, 2])] * 1000)
    assert [*bits.find_nearest(pack_unit([2, 1]), 3, b"\1")] == [0, 1, 2]


def test_a_mask_hides_the_vectors_of_files(make_bits: MakeBits) -> None:
    near, far = pack_unit([1, 1, 1]), pack_unit([-1, -1, -1])
    bits = fill(make_bits(), [near, far, near, far], [0, 1, 2, 2])
    assert [*bits.find_nearest(near, 2, b"\0\1\1")] == [1, 2]
    assert [*bits.find_nearest(near, 1, b"\0\1\1")] == [2]
    assert [*bits.find_nearest(near, 9, b"\0\0\0")] == []


def test_bits_are_extended_without_a_change_of_the_former(make_bits: MakeBits) -> None:
    vectors = draw_clustered(random.Random(1), 10, 70)
    first = fill(make_bits(), vectors[:4])
    both = first.extend([1] * 6, vectors[4:])
    assert (len(make_bits()), len(first), len(both), len(both.extend([], []))) == (0, 4, 10, 10)
    assert [*both.find_nearest(vectors[7], 1, b"\1\1")] == [7]
    assert first.vector_bytes == both.vector_bytes > 70 // 8
    assert [*make_bits().find_nearest(vectors[0], 5, b"")] == []


def test_joined_vectors_are_scored_by_the_best(make_bits: MakeBits) -> None:
    query, other, opposite = pack_unit([3, 4]), pack_unit([4, 3]), pack_unit([-3, -4])
    scores = make_bits().score(query, [query, other, opposite, opposite + other])
    assert scores == pytest.approx([1.0, 0.96, -1.0, 0.96], abs=1e-3)
    assert make_bits().score(query, []) == []


def exact_nearest(query: bytes, vectors: list[bytes], count: int) -> set[int]:
    numbers = [struct.unpack(f"<{len(vector) // 2}e", vector) for vector in (query, *vectors)]
    cosines = [sum(a * b for a, b in zip(numbers[0], row, strict=True)) for row in numbers[1:]]
    return {*sorted(range(len(vectors)), key=lambda number: -cosines[number])[:count]}


@cache  # takes seconds
def draw_queries() -> tuple[list[bytes], list[tuple[bytes, set[int]]]]:
    """Draw vectors, and queries with their ten nearest vectors."""
    rng = random.Random(7)
    vectors = draw_clustered(rng, 3000, 384)
    queries = [draw_near(rng, vector) for vector in rng.sample(vectors, 10)]
    return vectors, [(query, exact_nearest(query, vectors, 10)) for query in queries]


def test_candidates_contain_the_ten_nearest_of_seeded_vectors(make_bits: MakeBits) -> None:
    vectors, queries = draw_queries()
    bits = fill(make_bits(), vectors)
    found = 0
    for query, nearest in queries:
        candidates = [*bits.find_nearest(query, 400, b"\1")]
        scores = bits.score(query, [vectors[number] for number in candidates])
        best = {number for _, number in sorted(zip(scores, candidates, strict=True), reverse=True)[:10]}
        found += len(best & nearest)
    assert found / 100 >= 0.98


def test_python_and_numpy_find_and_score_the_same() -> None:
    pytest.importorskip("numpy")
    from antiphon.service.vector_stores.numpy_bits import NumpyBits

    rng = random.Random(3)
    for dimensions in (1, 8, 63, 64, 65, 384):
        vectors = draw_clustered(rng, 300, dimensions)
        files = [rng.randrange(5) for _ in vectors]
        python, numpy = fill(PythonBits(), vectors, files), fill(NumpyBits(), vectors, files)
        for mask in (b"\1\1\1\1\1", b"\1\0\1\0\0", b"\0\0\0\0\0"):
            query = draw_clustered(rng, 1, dimensions)[0]
            for count in (1, 7, 299, 1000):
                assert [*python.find_nearest(query, count, mask)] == [*numpy.find_nearest(query, count, mask)]
            assert python.score(query, vectors) == pytest.approx(numpy.score(query, vectors), abs=1e-5)


def test_numpy_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.delitem(sys.modules, "antiphon.service.vector_stores.numpy_bits", raising=False)
    assert isinstance(make_sign_bits(), PythonBits)
