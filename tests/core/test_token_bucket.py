"""A bucket fills at its pace, gives what it has, and pays off what it owes."""

from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.token_bucket import MINUTE, Bucket


def test_a_new_one_is_full_and_fills_again_in_a_minute() -> None:
    bucket = Bucket(60, now=0.0)
    bucket.take(60, 0.0)
    assert bucket.left(0.0) == 0
    assert bucket.left(1.0) == 1
    assert bucket.left(MINUTE * 2) == 60


def test_it_gives_what_is_there_and_nothing_otherwise() -> None:
    bucket = Bucket(60, now=0.0)
    assert bucket.grab(59, 0.0)
    assert not bucket.grab(2, 0.0)
    assert bucket.left(0.0) == 1
    assert bucket.grab(2, 1.0)


def test_what_was_too_much_is_owed_and_what_was_too_little_comes_back() -> None:
    bucket = Bucket(60, now=0.0)
    bucket.take(100, 0.0)
    assert bucket.left(10.0) == -30
    bucket.take(-500, 10.0)
    assert bucket.left(10.0) == 60


def test_another_size_keeps_what_was_taken() -> None:
    bucket = Bucket(60, now=0.0)
    bucket.take(20, 0.0)
    bucket.resize(100, 0.0)
    assert (bucket.left(0.0), bucket.size) == (80, 100)


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0, 50)), max_size=50), st.integers(1, 500))
def test_no_more_is_given_than_was_there_and_what_came(steps: list[tuple[float, float]], size: int) -> None:
    bucket, now, given_out = Bucket(size, 0.0), 0.0, 0.0
    for pause, amount in steps:
        now += pause
        if bucket.grab(amount, now):
            given_out += amount
        assert -1e-6 <= bucket.left(now) <= size
    assert given_out <= size + now * size / MINUTE + 1e-6
