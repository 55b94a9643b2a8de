"""The error for a missing package contains the command that installs it.

Covers `stores/live/registry.py`.
"""

import sys

import pytest

from antiphon.errors import StartupError
from antiphon.stores.live.registry import make_live_log
from antiphon.stores.plugin_loading import load
from antiphon.stores.registry import make_store
from antiphon.stores.sqlite import SqliteStore


def _hide_package(monkeypatch: pytest.MonkeyPatch, package: str, *modules: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for module in modules:
        monkeypatch.delitem(sys.modules, module, raising=False)


def test_postgresql_without_its_package_is_a_startup_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _hide_package(
        monkeypatch, "asyncpg", *(name for name in sys.modules if name.startswith("antiphon.stores.postgres"))
    )
    with pytest.raises(StartupError, match=r"asyncpg is not installed: pip install 'antiphon\[postgres\]'"):
        make_store("postgresql://127.0.0.1/db", 1.0)


def test_redis_without_its_package_is_a_startup_error(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for name in sys.modules if name.partition(".")[0] == "redis"]
    _hide_package(monkeypatch, "redis", *names, "antiphon.stores.live.redis")
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(StartupError, match=r"redis is not installed: pip install 'antiphon\[redis\]'"):
        make_live_log("redis://127.0.0.1", SqliteStore(":memory:", 1.0), 1.0)


def test_a_missing_module_of_no_extra_is_not_a_startup_error() -> None:
    with pytest.raises(ModuleNotFoundError):
        load("antiphon.stores.nowhere:Nothing")


@pytest.mark.parametrize("address", ["http://127.0.0.1", "localhost:6379", "", "redis"])
def test_an_unknown_address_of_a_live_log_is_rejected(address: str) -> None:
    with pytest.raises(StartupError, match="redis://"):
        make_live_log(address, SqliteStore(":memory:", 1.0), 1.0)
