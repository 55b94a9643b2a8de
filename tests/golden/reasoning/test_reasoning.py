"""Every recording of every family gives its thoughts and its answer, however it arrives."""

import pytest

from antiphon.parsers.reasoning.formats import THOUGHTS
from tests.golden.reasoning.recordings import FOLDER, Recording, load, play

UNRECORDED = {"think"}  # no family, but the marks of several that are
RECORDINGS = {family: load(family) for family in THOUGHTS}
ROWS = {
    "cohere_command3": "D4.10",
    "gemma4": "D4.9",
    "granite": "D4.4",
    "hunyuan_a13b": "D4.8",
    "kimi_k2": "D4.6",
    "minimax_m2": "D4.7",
    "mistral": "D4.3",
    "seed_oss": "D4.5",
}
EVERY = [
    pytest.param(
        family,
        recording,
        id=f"{family}-{recording.name}",
        marks=pytest.mark.shows("D.8", ROWS.get(family, "D4.1")),
    )
    for family, recordings in RECORDINGS.items()
    for recording in recordings
]


@pytest.mark.parametrize(("family", "recording"), EVERY)
def test_a_recording_gives_its_thoughts_and_its_answer(family: str, recording: Recording) -> None:
    assert play(family, recording, [recording.output]) == recording.expected


@pytest.mark.parametrize(("family", "recording"), EVERY)
def test_a_recording_gives_the_same_wherever_it_is_cut(family: str, recording: Recording) -> None:
    said = recording.output
    for cut in range(1, len(said)):
        assert play(family, recording, [said[:cut], said[cut:]]) == recording.expected, said[:cut]
    for size in (1, 2, 3, 7):
        parts = [said[at : at + size] for at in range(0, len(said), size)]
        assert play(family, recording, parts) == recording.expected, size


@pytest.mark.parametrize("family", sorted(THOUGHTS.keys() - UNRECORDED))
def test_every_family_was_recorded_with_a_thought_before_its_answer(family: str) -> None:
    recordings = RECORDINGS[family]
    assert len(recordings) >= 3
    assert any(each.expected[0][0] == "thought" and each.expected[-1][0] != "thought" for each in recordings)


@pytest.mark.parametrize(("family", "recording"), EVERY)
def test_every_recording_names_its_source(family: str, recording: Recording) -> None:
    source = recording.source
    assert source.repository
    assert source.path
    assert len(bytes.fromhex(source.commit)) == 20


def test_every_file_is_of_a_family_in_the_table() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} <= THOUGHTS.keys()
