"""What --store may say, and the files that make the tables."""

import pytest

from antiphon.errors import StartupError
from antiphon.stores.registry import make_store, named
from antiphon.stores.schema import Dialect, migrations, pending, schema
from antiphon.stores.sqlite import SqliteStore

DIALECTS: list[Dialect] = ["sqlite", "postgres"]


@pytest.mark.parametrize(
    ("place", "expected"),
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
def test_a_place_says_which_store_it_is(place: str, expected: tuple[str, str]) -> None:
    assert named(place) == expected


def test_an_unknown_kind_of_place_is_refused() -> None:
    with pytest.raises(StartupError, match="mysql://"):
        make_store("mysql://user:secret@host/name", 1.0)


def test_stores_say_their_names() -> None:
    assert make_store("memory", 1.0).name == "memory"
    store = make_store("some/file.db", 1.0)
    assert isinstance(store, SqliteStore)
    assert store.name == "sqlite"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_migrations_are_numbered_without_gaps(dialect: Dialect) -> None:
    assert [migration.number for migration in migrations(dialect)] == list(range(1, len(migrations(dialect)) + 1))


def test_only_what_was_not_done_is_pending() -> None:
    known = migrations("sqlite")
    assert pending("sqlite", 0) == known
    assert pending("sqlite", known[-1].number) == []
    assert schema("sqlite", 0).pending == [migration.name for migration in known]
    with pytest.raises(StartupError, match="newer"):
        pending("sqlite", known[-1].number + 1)
