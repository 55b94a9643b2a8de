"""The breaker as a machine by itself: any order of things that happen, with any clock."""

from hypothesis import given
from hypothesis import strategies as st

from antiphon.engines.pool.breaker import FAILURES, LONGEST_PAUSE, PAUSE, Breaker


def broken(times: int = FAILURES, now: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(times):
        breaker.failed(breaker.enter(), now)
    return breaker


def test_a_few_failures_in_a_row_open_it_and_fewer_do_not() -> None:
    assert broken(FAILURES - 1).phase(0.0) == "closed"
    assert broken(FAILURES).phase(0.0) == "open"
    assert not broken(FAILURES).allows(0.0)


def test_an_answer_that_ended_well_starts_the_count_anew() -> None:
    breaker = broken(FAILURES - 1)
    breaker.began(breaker.enter())
    breaker.ended()
    breaker.failed(breaker.enter(), 0.0)
    assert breaker.phase(0.0) == "closed"


def test_answers_that_begin_and_break_off_open_it_too() -> None:
    breaker = Breaker()
    for _ in range(FAILURES):
        breaker.failed(breaker.began(breaker.enter()), 0.0)
    assert breaker.phase(0.0) == "open"


def test_after_a_pause_one_trial_is_made_and_a_first_chunk_closes_it() -> None:
    breaker = broken()
    assert breaker.opens_in(0.0) == PAUSE
    assert not breaker.allows(PAUSE - 0.1)
    assert breaker.allows(PAUSE)
    assert breaker.phase(PAUSE) == "half-open"
    trial = breaker.enter()
    assert not breaker.allows(PAUSE), "one trial at a time"
    breaker.began(trial)
    assert breaker.phase(PAUSE) == "closed"
    assert breaker.allows(PAUSE)


def test_a_trial_that_fails_makes_the_next_pause_longer_up_to_a_bound() -> None:
    breaker, now, pauses = broken(), PAUSE, []
    for _ in range(8):
        breaker.failed(breaker.enter(), now)
        pauses.append(breaker.opens_in(now))
        now += pauses[-1]
    assert pauses[:3] == [2 * PAUSE, 4 * PAUSE, 8 * PAUSE]
    assert pauses[-1] == LONGEST_PAUSE


def test_a_trial_that_nobody_waits_for_frees_the_way_for_another() -> None:
    breaker = broken()
    breaker.left(breaker.enter())
    assert breaker.allows(PAUSE)
    assert breaker.phase(PAUSE) == "half-open"


def test_what_began_before_it_opened_is_not_heard() -> None:
    breaker = Breaker()
    old = breaker.enter()
    for _ in range(FAILURES):
        breaker.failed(breaker.enter(), 0.0)
    breaker.began(old)
    assert breaker.phase(0.0) == "open"
    trial = breaker.enter()
    breaker.left(old)
    assert not breaker.allows(PAUSE), "the trial of now is still under way"
    breaker.began(trial)
    for _ in range(FAILURES):
        breaker.failed(old, PAUSE)
    assert breaker.phase(PAUSE) == "closed"


Steps = st.lists(
    st.tuples(st.sampled_from(["enter", "began", "ended", "failed", "left", "wait"]), st.integers(0, 9)), max_size=120
)


@given(Steps)
def test_whatever_happens_work_is_allowed_again_in_the_end(steps: list[tuple[str, int]]) -> None:
    """And never more than one trial at a time, nor any work during a pause."""
    breaker, now = Breaker(), 0.0
    under_way: list[tuple[int, bool]] = []  # with whether it was a trial
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
                breaker.failed(epoch, now)
                breaker.left(epoch)
            elif step == "left":
                breaker.left(epoch)
            else:
                epoch = breaker.began(epoch)
                if step == "ended":
                    breaker.ended()
                    breaker.left(epoch)
                else:
                    under_way.append((epoch, False))
        if breaker.phase(now) == "open":
            assert not breaker.allows(now)
            assert 0 < breaker.opens_in(now) <= LONGEST_PAUSE
    for epoch, _ in under_way:
        breaker.left(epoch)
    assert breaker.allows(now + LONGEST_PAUSE)


def test_it_is_calm_while_there_is_nothing_that_a_good_answer_would_change() -> None:
    breaker = Breaker()
    assert breaker.calm
    breaker.failed(breaker.enter(), 0.0)
    assert not breaker.calm, "an answer starts the count anew"
    breaker.ended()
    assert breaker.calm
    breaker = broken()
    epoch = breaker.began(breaker.enter())
    assert not breaker.calm, "the next pause is a longer one until an answer has ended"
    breaker.left(epoch)
    breaker.ended()
    assert breaker.calm
