"""Stages are entered at once, in their order, and left only when it has been quiet for a while."""

import pytest

from antiphon.core.load_shedding import CALM, Mark, Shedding, Stage

MARKS = {"memory": Mark(0.8), "queue": Mark(1.0, None)}


def test_background_is_refused_first_and_then_everything() -> None:
    shedding = Shedding(MARKS)
    stages = []
    for number, load in enumerate([0.5, 0.8, 0.99, 1.0, 3.0]):
        shedding.note({"memory": load}, float(number))
        stages.append(shedding.stage)
    assert stages == [Stage.ALL, Stage.NO_BACKGROUND, Stage.NO_BACKGROUND, Stage.NOTHING_NEW, Stage.NOTHING_NEW]
    assert shedding.causes == ("memory",)


def test_a_load_without_a_second_mark_never_refuses_everything() -> None:
    shedding = Shedding(MARKS)
    shedding.note({"queue": 50.0}, 0.0)
    assert shedding.stage is Stage.NO_BACKGROUND


@pytest.mark.parametrize("load", [0.95, 0.91])
def test_a_load_that_hovers_at_its_mark_does_not_make_it_flutter(load: float) -> None:
    shedding = Shedding(MARKS)
    shedding.note({"memory": 1.0}, 0.0)
    shedding.note({"memory": load}, 100.0)
    assert shedding.stage is Stage.NOTHING_NEW


def test_it_recovers_by_itself_stage_by_stage() -> None:
    shedding = Shedding(MARKS)
    stages = []
    for load, now in ((1.2, 0.0), (0.85, CALM / 2), (0.85, CALM), (0.1, 2 * CALM)):
        shedding.note({"memory": load}, now)
        stages.append(shedding.stage)
    assert stages == [Stage.NOTHING_NEW, Stage.NOTHING_NEW, Stage.NO_BACKGROUND, Stage.ALL]
    assert shedding.causes == ()


def test_it_says_all_that_it_is_under() -> None:
    shedding = Shedding({"memory": Mark(0.8), "lag": Mark(0.5)})
    shedding.note({"memory": 1.0, "lag": 2.0}, 0.0)
    assert shedding.causes == ("lag", "memory")
