"""Every recording of every family gives its reasoning and its answer, at every cut."""

import pytest

from antiphon.parsers.reasoning import REASONING_FORMATS
from tests.golden.reasoning.recordings import FOLDER, Recording, load_recordings, parse_recording

UNRECORDED = {"think"}  # not a family, but the markers that several families share
RECORDINGS = {family: load_recordings(family) for family in REASONING_FORMATS}
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
ALL_RECORDINGS = [
    pytest.param(
        family,
        recording,
        id=f"{family}-{recording.name}",
        marks=pytest.mark.shows("D.8", ROWS.get(family, "D4.1")),
    )
    for family, recordings in RECORDINGS.items()
    for recording in recordings
]


@pytest.mark.parametrize(("family", "recording"), ALL_RECORDINGS)
def test_a_recording_gives_its_reasoning_and_its_answer_at_every_cut(family: str, recording: Recording) -> None:
    output = recording.output
    assert parse_recording(family, recording, [output]) == recording.expected
    for cut in range(1, len(output)):
        assert parse_recording(family, recording, [output[:cut], output[cut:]]) == recording.expected, output[:cut]
    for size in (1, 2, 3, 7):
        parts = [output[at : at + size] for at in range(0, len(output), size)]
        assert parse_recording(family, recording, parts) == recording.expected, size


@pytest.mark.parametrize("family", sorted(REASONING_FORMATS.keys() - UNRECORDED))
def test_every_family_has_a_recording_with_reasoning_before_the_answer(family: str) -> None:
    recordings = RECORDINGS[family]
    assert len(recordings) >= 3
    assert any(each.expected[0][0] == "thought" and each.expected[-1][0] != "thought" for each in recordings)


@pytest.mark.parametrize("family", REASONING_FORMATS)
def test_every_recording_names_its_source(family: str) -> None:
    for recording in RECORDINGS[family]:
        source = recording.source
        assert source.repository
        assert source.path
        assert len(bytes.fromhex(source.commit)) == 20


def test_every_file_belongs_to_a_family_in_the_table() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} <= REASONING_FORMATS.keys()
