"""Random examples of tests: pinned in CI, a third of them elsewhere, and fresh in `make test-seeds`, which chooses
another seed for each run.

A property test takes its examples from Hypothesis. Other tests take the argument `seed` and name the number of their
seeds with `@pytest.mark.seeds(12)`. TEST_SEED is added to all of them; a failed run prints the command that repeats it.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

BASE = int(os.environ.get("TEST_SEED") or 0)

# Examples are limited and have no deadline of their own, since the machine may be busy; pytest-timeout limits each
# test.
settings.register_profile("here", max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("here"), max_examples=60, derandomize=True, print_blob=True)
# Hypothesis itself pins the examples if it detects a CI, where `make test-seeds` runs too. There is no database: a
# failure of an earlier run would hide which seed leads to it.
settings.register_profile(
    "seeds", settings.get_profile("here"), max_examples=500, derandomize=False, print_blob=True, database=None
)


def choose_profile() -> str:
    if BASE:
        return "seeds"
    return "ci" if os.environ.get("CI") or os.environ.get("REQUIRE_SERVICES") else "here"


settings.load_profile(choose_profile())


def count_seeds(count: int, profile: str) -> int:
    """Return how many of a test's seeds a run takes."""
    return -(-count // 3) if profile == "here" else count


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if (marker := metafunc.definition.get_closest_marker("seeds")) and "seed" in metafunc.fixturenames:
        count, first = count_seeds(marker.args[0], choose_profile()), BASE + marker.kwargs.get("first", 0)
        metafunc.parametrize("seed", range(first, first + count))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if BASE and terminalreporter.stats.keys() & {"failed", "error"}:
        terminalreporter.write_line(f"Repeat the same examples with: make test-seeds SEED={BASE}")
