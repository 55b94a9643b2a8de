"""Default selection of tests: those marked `real_client` need much from outside and run only with `-m real_client`.

A file whose tests load a model, or measure time or memory, must contain the name of that marker itself, since `make
test` (tools/parallel_tests.py) searches the files for it.
"""

import pytest

from tools.parallel_tests import MEASUREMENT_MARK, MODEL_MARK

OPT_IN_MARK = "real_client"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for mark in (MODEL_MARK, MEASUREMENT_MARK):
        if hidden := {str(item.path) for item in items if any(item.iter_markers(mark)) and not _names(item, mark)}:
            raise pytest.UsageError(
                f"{mark} must be named in the files of its tests:\n  " + "\n  ".join(sorted(hidden))
            )
    if OPT_IN_MARK not in config.getoption("markexpr"):
        config.hook.pytest_deselected(items=[item for item in items if any(item.iter_markers(OPT_IN_MARK))])
        items[:] = [item for item in items if not any(item.iter_markers(OPT_IN_MARK))]


def _names(item: pytest.Item, mark: str) -> bool:
    return mark in item.path.read_text("utf-8")
