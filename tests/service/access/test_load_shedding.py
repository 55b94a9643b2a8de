"""Shedding stages are entered immediately, in order, and left only after a calm period."""

import pytest

from antiphon.service.access.load_monitor import CALM_SECONDS, LoadShedding, SheddingStage

THRESHOLDS = {"memory": (0.8, 1.0), "queue": (1.0, None)}


def test_background_requests_are_rejected_first_and_then_all_requests() -> None:
    shedding = LoadShedding(THRESHOLDS)
    stages = []
    for number, load in enumerate([0.5, 0.8, 0.99, 1.0, 3.0]):
        shedding.record({"memory": load}, float(number))
        stages.append(shedding.stage)
    assert stages == [
        SheddingStage.ALL,
        SheddingStage.NO_BACKGROUND,
        SheddingStage.NO_BACKGROUND,
        SheddingStage.NOTHING_NEW,
        SheddingStage.NOTHING_NEW,
    ]
    assert shedding.causes == ("memory",)


def test_a_load_without_a_second_threshold_never_rejects_all_requests() -> None:
    shedding = LoadShedding(THRESHOLDS)
    shedding.record({"queue": 50.0}, 0.0)
    assert shedding.stage is SheddingStage.NO_BACKGROUND


@pytest.mark.parametrize("load", [0.95, 0.91])
def test_a_load_that_hovers_at_its_threshold_does_not_toggle_the_stage(load: float) -> None:
    shedding = LoadShedding(THRESHOLDS)
    shedding.record({"memory": 1.0}, 0.0)
    shedding.record({"memory": load}, 100.0)
    assert shedding.stage is SheddingStage.NOTHING_NEW


def test_shedding_recovers_stage_by_stage() -> None:
    shedding = LoadShedding(THRESHOLDS)
    stages = []
    for load, now in ((1.2, 0.0), (0.85, CALM_SECONDS - 0.5), (0.85, CALM_SECONDS), (0.1, 2 * CALM_SECONDS)):
        shedding.record({"memory": load}, 1000.0 + now)
        stages.append(shedding.stage)
    assert stages == [
        SheddingStage.NOTHING_NEW,
        SheddingStage.NOTHING_NEW,
        SheddingStage.NO_BACKGROUND,
        SheddingStage.ALL,
    ]
    assert shedding.causes == ()


def test_causes_list_every_exceeded_load() -> None:
    shedding = LoadShedding({"memory": (0.8, 1.0), "lag": (0.5, 1.0)})
    shedding.record({"memory": 1.0, "lag": 2.0}, 0.0)
    assert shedding.causes == ("lag", "memory")
