"""Which tests `make test` runs side by side (tools/lanes.py): `--lane models`, `--lane servers`, `--lane others`."""

import pytest

from tools.lanes import LANES

MODELS = ("contracts/test_engine", "engines/llamacpp", "real")  # load a model
SERVERS = ("cli", "clients", "faults")  # start whole servers, and mostly wait for them


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lane", choices=LANES, help="run only the tests of this lane")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (lane := config.getoption("lane")) is None:
        return
    here = {item for item in items if _lane(item) == lane}
    config.hook.pytest_deselected(items=[item for item in items if item not in here])
    items[:] = [item for item in items if item in here]


def _lane(item: pytest.Item) -> str:
    place = item.nodeid.removeprefix("tests/")
    if place.startswith(MODELS) or any(item.iter_markers("real_model")):
        return "models"
    return "servers" if place.startswith(SERVERS) else "others"
