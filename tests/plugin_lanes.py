"""`--lane servers`: tests that start whole servers or load a model; `--lane others`: the rest (tools/lanes.py)."""

import pytest

SERVERS = ("cli", "clients", "contracts/test_engine", "engines/llamacpp", "faults", "real")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lane", choices=("servers", "others"), help="run only the tests of this lane")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (lane := config.getoption("lane")) is None:
        return
    here = {item for item in items if _starts_servers(item) == (lane == "servers")}
    config.hook.pytest_deselected(items=[item for item in items if item not in here])
    items[:] = [item for item in items if item in here]


def _starts_servers(item: pytest.Item) -> bool:
    return item.nodeid.removeprefix("tests/").startswith(SERVERS) or any(item.iter_markers("real_model"))
