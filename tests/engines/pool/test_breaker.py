"""The circuit breaker as a state machine, for any order of events and any clock."""

from hypothesis import given
from hypothesis import strategies as st

from antiphon.engines.pool.members import FAILURES, MAX_PAUSE, PAUSE, Breaker


def make_failed_breaker(times: int = FAILURES, now: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(times):
        breaker.record_failure(breaker.enter(), now)
    return breaker


def test_consecutive_failures_open_the_breaker() -> None:
    assert make_failed_breaker(FAILURES - 1).phase(0.0) == "closed"
    assert make_failed_breaker(FAILURES).phase(0.0) == "open"
    assert not make_failed_breaker(FAILURES).allows(0.0)


def test_a_completed_answer_resets_the_failure_count() -> None:
    breaker = make_failed_breaker(FAILURES - 1)
    breaker.record_start(breaker.enter())
    breaker.record_end()
    breaker.record_failure(breaker.enter(), 0.0)
    assert breaker.phase(0.0) == "closed"


def test_answers_that_break_off_open_the_breaker() -> None:
    breaker = Breaker()
    for _ in range(FAILURES):
        breaker.record_failure(breaker.record_start(breaker.enter()), 0.0)
    assert breaker.phase(0.0) == "open"


def test_one_trial_follows_the_pause_and_its_first_chunk_closes_the_breaker() -> None:
    breaker = make_failed_breaker()
    assert breaker.seconds_until_trial(0.0) == PAUSE
    assert not breaker.allows(PAUSE - 0.1)
    assert breaker.allows(PAUSE)
    assert breaker.phase(PAUSE) == "half-open"
    trial = breaker.enter()
    assert not breaker.allows(PAUSE), "one trial at a time"
    breaker.record_start(trial)
    assert breaker.phase(PAUSE) == "closed"
    assert breaker.allows(PAUSE)


def test_a_failed_trial_lengthens_the_next_pause_up_to_a_limit() -> None:
    breaker, now, pauses = make_failed_breaker(), PAUSE, []
    for _ in range(8):
        breaker.record_failure(breaker.enter(), now)
        pauses.append(breaker.seconds_until_trial(now))
        now += pauses[-1]
    assert pauses[:3] == [2 * PAUSE, 4 * PAUSE, 8 * PAUSE]
    assert pauses[-1] == MAX_PAUSE


def test_a_cancelled_trial_allows_another_one() -> None:
    breaker = make_failed_breaker()
    breaker.release_trial(breaker.enter())
    assert breaker.allows(PAUSE)
    assert breaker.phase(PAUSE) == "half-open"


def test_requests_from_before_the_opening_are_ignored() -> None:
    breaker = Breaker()
    old = breaker.enter()
    for _ in range(FAILURES):
        breaker.record_failure(breaker.enter(), 0.0)
    breaker.record_start(old)
    assert breaker.phase(0.0) == "open"
    trial = breaker.enter()
    breaker.release_trial(old)
    assert not breaker.allows(PAUSE), "the current trial is still running"
    breaker.record_start(trial)
    for _ in range(FAILURES):
        breaker.record_failure(old, PAUSE)
    assert breaker.phase(PAUSE) == "closed"


STEPS = st.lists(
    st.tuples(st.sampled_from(["enter", "began", "ended", "failed", "left", "wait"]), st.integers(0, 9)), max_size=120
)


@given(STEPS)
def test_requests_are_eventually_allowed_again(steps: list[tuple[str, int]]) -> None:
    """Also, there is never more than one trial at a time, and no request during a pause."""
    breaker, now = Breaker(), 0.0
    under_way: list[tuple[int, bool]] = []  # the epoch, and whether the request was a trial
    for step, which in steps:
        if step == "wait":
            now += which
        elif step == "enter":
            if breaker.allows(now):
                trial = breaker.phase(now) == "half-open"
                under_way.append((breaker.enter(), trial))
        elif under_way:
            epoch, trial = under_way.pop(which % len(under_way))
            if step == "failed":
                breaker.record_failure(epoch, now)
                breaker.release_trial(epoch)
            elif step == "left":
                breaker.release_trial(epoch)
            else:
                epoch = breaker.record_start(epoch)
                if step == "ended":
                    breaker.record_end()
                    breaker.release_trial(epoch)
                else:
                    under_way.append((epoch, False))
        if breaker.phase(now) == "open":
            assert not breaker.allows(now)
            assert 0 < breaker.seconds_until_trial(now) <= MAX_PAUSE
    for epoch, _ in under_way:
        breaker.release_trial(epoch)
    assert breaker.allows(now + MAX_PAUSE)
