"""Bytes that engines really sent, replayed: what comes of them is what came of them, wherever they are cut; and what
engines are sent is what they were sent. `make golden` writes the expectations anew; the difference is for review."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.real.vllm_metrics import counted
from tools.golden import GOLDEN, RECORDED, expected, read, recordings, replay
from tools.golden_cases import CASES

pytestmark = pytest.mark.anyio

SEEDS = range(4)
FOUND = recordings()


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", FOUND, ids=_name)
@pytest.mark.shows("C.14", "C.15", "C.16", "C.17", "C.18", "C.20", "C.21", "A3.18", "G.8", "G2.1")
async def test_a_recording_says_what_it_said(path: Path) -> None:
    wanted: Any = msgspec.json.decode(expected(path).read_bytes())
    for seed in SEEDS:
        assert await replay(path, seed) == wanted


def test_three_were_recorded_and_the_others_say_that_they_were_not() -> None:
    how: dict[str, set[str]] = {}
    for path in FOUND:
        how.setdefault(path.parent.name, set()).add(read(path).how)
    assert how["vllm"] == how["sglang"] == how["llamacpp-server"] == {RECORDED}
    assert all("documentation" in words for name in ("ovms", "ollama") for words in how[name])


def test_every_case_was_recorded_from_vllm() -> None:
    assert {path.stem for path in FOUND if path.parent.name == "vllm"} == CASES.keys()


def test_every_case_of_models_that_generate_was_recorded_from_sglang_and_how_it_embeds() -> None:
    generating = {name for name, case in CASES.items() if case.kind == "generate"}
    assert {path.stem for path in FOUND if path.parent.name == "sglang"} == generating | {"open-embed", "embed"}


def test_the_gauge_of_vllm_is_read_from_its_page() -> None:
    """The page was recorded while it had 34 requests, some of them waiting."""
    assert counted((GOLDEN / "vllm" / "metrics.txt").read_bytes()) == 34
