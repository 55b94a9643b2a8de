"""A token bucket refills at its rate, grants what it holds, and pays off its debt."""

from hypothesis import given
from hypothesis import strategies as st

from antiphon.token_bucket import MINUTE, TokenBucket


def test_a_new_bucket_is_full_and_refills_within_a_minute() -> None:
    bucket = TokenBucket(60, now=0.0)
    bucket.take(60, 0.0)
    assert bucket.available(0.0) == 0
    assert bucket.available(1.0) == 1
    assert bucket.available(MINUTE * 2) == 60


def test_try_take_fails_beyond_the_available_amount() -> None:
    bucket = TokenBucket(60, now=0.0)
    assert bucket.try_take(59, 0.0)
    assert not bucket.try_take(2, 0.0)
    assert bucket.available(0.0) == 1
    assert bucket.try_take(2, 1.0)


def test_debt_is_paid_off_and_refunds_are_capped_at_the_size() -> None:
    bucket = TokenBucket(60, now=0.0)
    bucket.take(100, 0.0)
    assert bucket.available(10.0) == -30
    bucket.take(-500, 10.0)
    assert bucket.available(10.0) == 60


def test_resizing_preserves_the_taken_amount() -> None:
    bucket = TokenBucket(60, now=0.0)
    bucket.take(20, 0.0)
    bucket.resize(100, 0.0)
    assert (bucket.available(0.0), bucket.size) == (80, 100)


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0, 50)), max_size=50), st.integers(1, 500))
def test_grants_never_exceed_the_initial_amount_plus_the_refill(steps: list[tuple[float, float]], size: int) -> None:
    bucket, now, granted = TokenBucket(size, 0.0), 0.0, 0.0
    for pause, amount in steps:
        now += pause
        if bucket.try_take(amount, now):
            granted += amount
        assert -1e-6 <= bucket.available(now) <= size
    assert granted <= size + now * size / MINUTE + 1e-6
