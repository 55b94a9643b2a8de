"""Which tests are run unless others are asked for: those that need much from elsewhere (`-m real_client`) are left out.

A file with tests that load a model says so in its own words, since `make test` (tools/parallel_tests.py) looks for
them there."""

import pytest

from tools.parallel_tests import MARK

ASKED_FOR = "real_client"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    hidden = {str(item.path) for item in items if any(item.iter_markers(MARK)) and not _says(item)}
    if hidden:
        raise pytest.UsageError(f"{MARK} has to be named in the files of its tests:\n  " + "\n  ".join(sorted(hidden)))
    if ASKED_FOR not in config.getoption("markexpr"):
        config.hook.pytest_deselected(items=[item for item in items if any(item.iter_markers(ASKED_FOR))])
        items[:] = [item for item in items if not any(item.iter_markers(ASKED_FOR))]


def _says(item: pytest.Item) -> bool:
    return MARK in item.path.read_text("utf-8")
