"""Which tests `make test` runs side by side (tools/lanes.py): `--lane models`, `--lane servers`, `--lane others`.

Those that need much from elsewhere are left out unless they are asked for by their mark: `-m real_client`.
"""

import pytest

from tools.lanes import LANES

MODELS = ("contracts/test_engine", "engines/llamacpp", "real")  # load a model
SERVERS = ("cli", "clients", "faults")  # start whole servers, and mostly wait for them
ASKED_FOR = "real_client"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lane", choices=LANES, help="run only the tests of this lane")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lane, asked = config.getoption("lane"), ASKED_FOR in config.getoption("markexpr")
    here = {item for item in items if lane in (None, _lane(item)) and (asked or not _elsewhere(item))}
    config.hook.pytest_deselected(items=[item for item in items if item not in here])
    items[:] = [item for item in items if item in here]


def _elsewhere(item: pytest.Item) -> bool:
    return any(item.iter_markers(ASKED_FOR))


def _lane(item: pytest.Item) -> str:
    place = item.nodeid.removeprefix("tests/")
    if place.startswith(MODELS) or any(item.iter_markers("real_model")):
        return "models"
    return "servers" if place.startswith(SERVERS) else "others"
