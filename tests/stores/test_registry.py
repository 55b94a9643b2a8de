"""The values of --store, and the migration files that create the tables."""

import sys

import pytest

from antiphon.errors import StartupError
from antiphon.stores.registry import load, make_contents, make_live_log, make_store, parse_location
from antiphon.stores.schema import Dialect, describe, load_migrations, pending_migrations
from antiphon.stores.sqlite import SqliteStore

DIALECTS: list[Dialect] = ["sqlite", "postgres"]


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("memory", ("memory", ":memory:")),
        (":memory:", ("memory", ":memory:")),
        ("./memory", ("sqlite", "./memory")),
        ("/data/store.db", ("sqlite", "/data/store.db")),
        ("sqlite:///data/store.db", ("sqlite", "/data/store.db")),
        ("sqlite://store.db", ("sqlite", "store.db")),
        ("postgresql://user:secret@host/name", ("postgresql", "postgresql://user:secret@host/name")),
        ("postgres://host/name", ("postgresql", "postgres://host/name")),
    ],
)
def test_the_location_selects_the_store(location: str, expected: tuple[str, str]) -> None:
    assert parse_location(location) == expected


def test_an_unknown_scheme_is_rejected() -> None:
    with pytest.raises(StartupError, match="mysql://"):
        make_store("mysql://user:secret@host/name", 1.0)


def test_stores_have_names() -> None:
    assert make_store("memory", 1.0).name == "memory"
    store = make_store("some/file.db", 1.0)
    assert isinstance(store, SqliteStore)
    assert store.name == "sqlite"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_migrations_are_numbered_without_gaps(dialect: Dialect) -> None:
    assert [migration.number for migration in load_migrations(dialect)] == list(
        range(1, len(load_migrations(dialect)) + 1)
    )


def test_only_unapplied_migrations_are_pending() -> None:
    expected = load_migrations("sqlite")
    assert pending_migrations("sqlite", 0) == expected
    assert pending_migrations("sqlite", expected[-1].number) == []
    assert describe("sqlite", 0).pending == [migration.name for migration in expected]
    with pytest.raises(StartupError, match="newer"):
        pending_migrations("sqlite", expected[-1].number + 1)


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


def test_a_bucket_without_its_package_is_a_startup_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _hide_package(monkeypatch, "obstore", "antiphon.stores.contents.s3")
    with pytest.raises(StartupError, match=r"obstore is not installed: pip install 'antiphon\[s3\]'"):
        make_contents("s3://bucket", "memory", SqliteStore(":memory:", 1.0))


def test_a_missing_module_of_no_extra_is_not_a_startup_error() -> None:
    with pytest.raises(ModuleNotFoundError):
        load("antiphon.stores.nowhere:Nothing")


@pytest.mark.parametrize("address", ["http://127.0.0.1", "localhost:6379", "", "redis"])
def test_an_unknown_address_of_a_live_log_is_rejected(address: str) -> None:
    with pytest.raises(StartupError, match="redis://"):
        make_live_log(address, SqliteStore(":memory:", 1.0), 1.0)
