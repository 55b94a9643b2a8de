"""Every recording of every call format gives its calls and its text, at every cut and after truncation."""

import json

import pytest
from msgspec import UNSET

from antiphon.parsers.calls.registry import FORMATS
from antiphon.testing.call_format_tests import ParsedPiece
from tests.golden.calls.recordings import FOLDER, Recording, load_recordings, parse_recording

SHOWS = {
    "apertus": ("D3.39",),
    "cohere_command3": ("D3.40",),
    "deepseek_v3": ("D3.8",),
    "deepseek_v31": ("D3.9",),
    "deepseek_v32": ("D3.10",),
    "deepseek_v4": ("D3.11",),
    "ernie45": ("D3.32",),
    "functiongemma": ("D3.23",),
    "gemma4": ("D3.24",),
    "gigachat3": ("D3.38",),
    "glm45": ("D3.12",),
    "glm47": ("D3.13",),
    "granite": ("D3.16",),
    "granite-20b-fc": ("D3.18",),
    "granite4": ("D3.17",),
    "hermes": ("D3.1",),
    "hunyuan_a13b": ("D3.30",),
    "hy_v3": ("D3.31",),
    "internlm": ("D3.25", "D3.26"),
    "jamba": ("D3.27",),
    "kimi_k2": ("D3.14",),
    "lfm2": ("D3.37",),
    "ling3": ("D3.44",),
    "llama3_json": ("D3.4",),
    "llama4_pythonic": ("D3.5",),
    "longcat": ("D3.36",),
    "mimo": ("D3.41",),
    "minicpm5": ("D3.42",),
    "minimax": ("D3.19",),
    "minimax_m2": ("D3.20",),
    "minimax_m3": ("D3.21",),
    "mistral": ("D3.7",),
    "nemotron": ("D3.43",),
    "olmo3": ("D3.29",),
    "phi4_mini_json": ("D3.22",),
    "pythonic": ("D3.6",),
    "qwen3_coder": ("D3.2",),
    "seed_oss": ("D3.33",),
    "step3": ("D3.34",),
    "step3p5": ("D3.35",),
    "xlam": ("D3.28",),
}
RECORDINGS = {form: load_recordings(form) for form in FORMATS}
ALL_RECORDINGS = [
    pytest.param(form, recording, id=f"{form}-{recording.name}", marks=pytest.mark.shows("D.9", *SHOWS.get(form, ())))
    for form, recordings in RECORDINGS.items()
    for recording in recordings
]


@pytest.mark.parametrize(("form", "recording"), ALL_RECORDINGS)
def test_a_recording_gives_the_same_result_at_every_cut(form: str, recording: Recording) -> None:
    output = recording.output
    for cut in range(1, len(output)):
        assert parse_recording(form, recording, [output[:cut], output[cut:]]) == recording.expected, output[:cut]


@pytest.mark.parametrize(("form", "recording"), ALL_RECORDINGS)
def test_a_recording_gives_its_calls_and_its_text_in_pieces_of_any_size(form: str, recording: Recording) -> None:
    output = recording.output
    for size in (len(output), 16, 7, 4, 3, 2, 1):
        parts = [output[at : at + size] for at in range(0, len(output), size)]
        assert parse_recording(form, recording, parts) == recording.expected, size


@pytest.mark.parametrize(("form", "recording"), ALL_RECORDINGS)
def test_a_truncated_recording_gives_its_first_calls_with_valid_arguments(form: str, recording: Recording) -> None:
    names = [parsed.call for parsed in recording.expected if parsed.call is not UNSET]
    for length in range(len(recording.output)):
        parsed = parse_recording(form, recording, [recording.output[:length]])
        assert [each.call for each in _select_calls(parsed)] == names[: len(_select_calls(parsed))], recording.output[
            :length
        ]
        for each in _select_calls(parsed):
            assert recording.broken or isinstance(json.loads(str(each.arguments)), dict), recording.output[:length]


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_has_recordings_of_parallel_and_truncated_calls(form: str) -> None:
    recordings = RECORDINGS[form]
    assert len(recordings) >= 3
    assert any("parallel" in each.name and len(_select_calls(each.expected)) > 1 for each in recordings)
    assert any("truncated" in each.name and _select_calls(each.expected) for each in recordings)


@pytest.mark.parametrize("form", FORMATS)
def test_every_recording_names_its_source(form: str) -> None:
    for recording in RECORDINGS[form]:
        source = recording.source
        assert source.repository
        assert source.path
        assert len(source.commit) == 40
        assert set(source.commit) <= set("0123456789abcdef")


def test_every_file_belongs_to_a_registered_format() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} <= FORMATS.keys()


def _select_calls(pieces: list[ParsedPiece]) -> list[ParsedPiece]:
    return [each for each in pieces if each.call is not UNSET]
