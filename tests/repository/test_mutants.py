"""Mutation testing: which changes are drawn, that they can be turned on one at a time, and when a test notices one."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools.mutants import AREAS, PACKAGE, ROOT, SWITCH, SWITCH_SOURCE, add_switches, draw_mutants, list_mutants

SOURCE = """
LIMIT = 3 < 4

@grüße(True)
def grüße(log, entries, text: str = "not" is not None) -> Literal[True]:
    log.info("done", exc_info=True)
    log.append(f"{not text}")
    count: Literal[True] = 1 + 1
    assert entries == zip(log, entries, strict=True)
    text = "a" + text
    if not 0 < count < 3:
        assert_never(text)
    return not text and (
        LIMIT == 3
    )
"""


def test_mutants_change_one_rule_within_a_function() -> None:
    mutants = [*list_mutants("core", Path("a.py"), SOURCE.encode())]
    assert [(one.line, one.before, one.after) for one in mutants] == [
        (7, "log.append(f'{not text}')", "pass"),
        (8, "1 + 1", "1 - 1"),
        (11, "not 0 < count < 3", "0 < count < 3"),
        (11, "0 < count < 3", "0 <= count < 3"),
        (13, "not text and LIMIT == 3", "not text or LIMIT == 3"),
        (13, "not text", "text"),
        (14, "LIMIT == 3", "LIMIT != 3"),
    ]


CHECK = b"""
def check(log, number):
    log.append(number)
    return not number < 3 and number + 1 != 5
"""


@pytest.mark.parametrize(
    ("active", "logged", "accepted"),
    [
        (-1, 7, [3, 5, 6]),
        (10, 0, [3, 5, 6]),  # no call
        (11, 7, [0, 1, 2, 3, 4, 5, 6]),  # or
        (12, 7, [0, 1, 2]),  # not
        (13, 7, [5, 6]),  # <=
        (14, 7, [4]),  # ==
        (15, 7, [3, 4, 5]),  # -
    ],
)
def test_one_mutant_at_a_time_is_turned_on(
    active: int, logged: int, accepted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = SimpleNamespace(is_mutated=lambda number: number == active)
    monkeypatch.setitem(sys.modules, SWITCH, switch)
    names: dict[str, Any] = {}
    exec(add_switches(CHECK, {place: 10 + place for place in range(6)}), names)  # noqa: S102 - source of this test
    log: list[int] = []
    assert [number for number in range(7) if names["check"](log, number)] == accepted
    assert len(log) == logged


def test_a_seed_draws_the_same_mutants_again() -> None:
    areas = ["egress", "service/access"]  # to list those of all takes seconds
    first, again, other = (draw_mutants(areas, 30, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert {mutant.area for mutant in first} == {*areas}
    for mutant in first:
        compile(add_switches((PACKAGE / mutant.path).read_bytes(), {mutant.place: 0}), "switched", "exec")


def test_the_folders_of_all_areas_exist() -> None:
    for area, tests in AREAS.items():
        assert (PACKAGE / area).is_dir()
        assert all((ROOT / folder).exists() for folder in tests)


TRIAL = """
import sys
from pathlib import Path

import pytest

from tools import mutants

mutants._SLACK_SECONDS = 5.0
drawn = [mutants.Mutant("core", Path(f"{number}.py"), 0, 1, str(number), "other") for number in range(int(sys.argv[1]))]
trial = mutants.Trial(drawn, 2)
pytest.main(["--rootdir=.", "-c", "pytest.ini", "-q"], plugins=[trial])
sys.exit(trial.judge())
"""
TESTS = """
import os, subprocess, sys
from pathlib import Path

import pytest
from mutant_switch import is_mutated

@pytest.mark.parametrize("number", [0, 2])
def test_wrong(number):
    assert not is_mutated(number)

def test_wrong_in_another_process():
    is_mutated(1)
    subprocess.run([sys.executable, "-c", "import mutant_switch as s; assert not s.is_mutated(1)"], check=True)

def test_crash():
    if is_mutated(3):
        os._exit(0)

def test_reach():
    is_mutated(4)

def test_wrong_once():
    seen = Path(__file__).with_suffix(".seen")
    if is_mutated(5) and not seen.exists():
        seen.touch()
        raise ValueError

def test_always_wrong():
    is_mutated(6)
    assert False

def test_skipped():
    is_mutated(7)
    pytest.skip("not available on this machine: postgresql")
"""
HANG = """
import time
from mutant_switch import is_mutated

def test_hang():
    while is_mutated(0):
        time.sleep(1)
"""


def run_trial(folder: Path, tests: str, count: int) -> tuple[int, list[str]]:
    """Return the exit code and the output of a trial with some mutants."""
    (folder / "test_one.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / f"{SWITCH}.py").write_text(SWITCH_SOURCE)
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-c", TRIAL, str(count)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=100
    )
    return done.returncode, done.stdout.splitlines()


def test_a_test_notices_a_mutant_if_it_fails_twice_and_passes_without_it(tmp_path: Path) -> None:
    code, output = run_trial(tmp_path, TESTS, 8)
    noticed = [line.rpartition("::")[2] for line in output if line.startswith("noticed")]
    assert noticed == ["test_wrong[0]", "test_wrong_in_another_process", "test_wrong[2]", "test_crash"]
    assert [line for line in output if "SURVIVED" in line][4:] == [
        f"SURVIVED {n}.py:1: {n}  →  other" for n in range(4, 8)
    ]
    assert "  1 skipped, Skipped: not available on this machine: postgresql" in output
    assert "  failed: test_one.py::test_always_wrong" in output
    assert output[-1] == "4 of 8 mutants were noticed: 50 %, goal 85 %"
    assert code == 1


@pytest.mark.slow
def test_a_test_without_an_end_notices_a_mutant(tmp_path: Path) -> None:
    code, output = run_trial(tmp_path, HANG, 1)
    assert output[-1] == "1 of 1 mutants were noticed: 100 %, goal 85 %"
    assert code == 0
