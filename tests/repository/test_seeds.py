"""Tests with random examples: pinned seeds in CI, and other ones in `make test-seeds`, which a failure names."""

import pytest
from hypothesis import settings

from tests.plugins.seeds import count_seeds
from tools.requirements import ROOT

TESTS = """
import pytest
from hypothesis import given, settings, strategies as st

@pytest.mark.seeds(2, first=10)
def test_small(seed):
    assert seed < 100

@given(st.integers())
def test_any(number):
    assert settings().derandomize is {pinned}
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    monkeypatch.setenv("CI", "1")
    monkeypatch.delenv("TEST_SEED", raising=False)
    pytester.makeini("[pytest]\nmarkers =\n    seeds(count, first=0)\n")
    return pytester


def test_the_examples_are_pinned_under_ci(run: pytest.Pytester) -> None:
    run.makepyfile(TESTS.format(pinned=True))
    result = run.runpytest_subprocess("-ptests.plugins.seeds", "-pno:cacheprovider", "-v")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*test_small?10?*", "*test_small?11?*"])


def test_a_chosen_seed_changes_the_examples_and_is_named_by_a_failure(
    run: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_SEED", "99")
    run.makepyfile(TESTS.format(pinned=False))
    result = run.runpytest_subprocess("-ptests.plugins.seeds", "-pno:cacheprovider")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*test_small?109?*", "*make test-seeds SEED=99"])


@pytest.mark.parametrize(("profile", "counts"), [("here", [1, 1, 4]), ("ci", [1, 3, 12]), ("seeds", [1, 3, 12])])
def test_a_run_without_ci_takes_a_third_of_the_seeds(profile: str, counts: list[int]) -> None:
    assert [count_seeds(count, profile) for count in (1, 3, 12)] == counts
    assert (settings.get_profile(profile).max_examples < 60) is (profile == "here")


def test_every_loop_over_seeds_uses_the_marker() -> None:
    """Otherwise `make test-seeds` would run the same examples as CI."""
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if path.name != "test_seeds.py"]
    assert [path.name for path in files if 'parametrize("seed"' in path.read_text("utf-8")] == []
