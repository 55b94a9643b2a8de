"""Bytes that engines really sent, replayed: the results equal the expectations at every cut, and so do the requests.

`make golden` rewrites the expectations; review the resulting diff.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.real.vllm_metrics import sum_gauges
from tools.golden import GOLDEN, RECORDED_BY_TOOL, expected_path, list_recordings, load_recording, replay
from tools.golden_cases import CASES

pytestmark = pytest.mark.anyio

SEEDS = range(4)
RECORDINGS = list_recordings()


# The requirements that a recording shows: by its engine, and by parts of its name.
ENGINE_ROWS = {"vllm": "C.14", "sglang": "C.15", "ovms": "C.16", "llamacpp-server": "C.17", "ollama": "C.18"}
CASE_ROWS = {
    "tokens": "C.20",
    "open": "C.21",
    "tags": "A3.18",
    "rerank": "G.8",
    **dict.fromkeys(("classify", "pooling", "transcribe"), "G2.1"),
}


def _list_rows(path: Path) -> list[str]:
    parts = path.stem.split("-")
    return [ENGINE_ROWS[path.parent.name], *(row for part, row in CASE_ROWS.items() if part in parts)]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=f"{path.parent.name}/{path.stem}", marks=pytest.mark.shows(*_list_rows(path)))
        for path in RECORDINGS
    ],
)
async def test_a_replayed_recording_gives_its_expected_result(path: Path) -> None:
    wanted: Any = msgspec.json.decode(expected_path(path).read_bytes())
    for seed in SEEDS:
        assert await replay(path, seed) == wanted


def test_three_engines_were_recorded_and_the_others_are_from_documentation() -> None:
    how: dict[str, set[str]] = {}
    for path in RECORDINGS:
        how.setdefault(path.parent.name, set()).add(load_recording(path).how)
    recorded = how["vllm"] | how["sglang"] | how["llamacpp-server"]
    assert all(origin.startswith(RECORDED_BY_TOOL) for origin in recorded)
    assert all("documentation" in origin for name in ("ovms", "ollama") for origin in how[name])


def test_every_case_was_recorded_from_vllm() -> None:
    assert {path.stem for path in RECORDINGS if path.parent.name == "vllm"} == CASES.keys()


def test_every_generation_case_and_embedding_was_recorded_from_sglang() -> None:
    generating = {name for name, case in CASES.items() if case.kind == "generate"}
    assert {path.stem for path in RECORDINGS if path.parent.name == "sglang"} == generating | {"open-embed", "embed"}


def test_the_request_gauges_of_vllm_are_read_from_its_metrics_page() -> None:
    """The page was recorded while vLLM had 34 requests, some of them waiting."""
    assert sum_gauges((GOLDEN / "vllm" / "metrics.txt").read_bytes()) == 34
