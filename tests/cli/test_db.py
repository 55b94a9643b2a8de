"""`antiphon db`: what it says of a store, and the exit codes that scripts go by."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from antiphon.cli.db import shown
from antiphon.stores.schema import migrations
from tests.cli.process import run
from tests.support.server_process import serving

NAMES = ", ".join(migration.name for migration in migrations("sqlite"))
NEWEST = len(migrations("sqlite"))


def test_tables_are_brought_up_to_date_and_said_to_be(tmp_path: Path) -> None:
    place = tmp_path / "state" / "my.db"
    before = run(tmp_path, "db", "status", "--store", str(place))
    assert (before.returncode, before.stderr) == (1, "")
    assert before.stdout == f"{place}: schema 0 of {NEWEST}; to be done: {NAMES}. Run: antiphon db migrate\n"
    assert not place.exists()
    migrated = run(tmp_path, "db", "migrate", "--store", str(place))
    assert (migrated.returncode, migrated.stdout) == (0, f"{place}: {NAMES} done.\n")
    after = run(tmp_path, "db", "status", "--store", str(place))
    assert (after.returncode, after.stdout) == (0, f"{place}: schema {NEWEST}, up to date.\n")
    again = run(tmp_path, "db", "migrate", "--store", str(place))
    assert (again.returncode, again.stdout) == (0, f"{place}: up to date, nothing to be done.\n")


def test_without_a_word_it_is_the_store_of_the_server(tmp_path: Path) -> None:
    place = tmp_path / "antiphon" / "antiphon.db"
    assert run(tmp_path, "db", "migrate").stdout == f"{place}: {NAMES} done.\n"
    assert place.exists()
    (tmp_path / "antiphon.toml").write_text('store = "other.db"\n')
    assert run(tmp_path, "db", "migrate").stdout == f"other.db: {NAMES} done.\n"


def test_a_newer_store_is_told_apart_and_left_alone(tmp_path: Path) -> None:
    place = str(tmp_path / "my.db")
    run(tmp_path, "db", "migrate", "--store", place)
    with closing(sqlite3.connect(place)) as newer:
        newer.execute("INSERT INTO migrations (number, name) VALUES (99, '0099_later')")
        newer.commit()
    status = run(tmp_path, "db", "status", "--store", place)
    assert (status.returncode, status.stdout) == (
        1,
        f"{place}: schema 99, of a newer Antiphon; this one knows {NEWEST}.\n",
    )
    for command in (("db", "migrate"), ("serve", "--engine", "fake", "--port", "0")):
        ran = run(tmp_path, *command, "--store", place)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert ran.stderr.startswith("antiphon: The store was made by a newer Antiphon")
        assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("memory", "in memory is made anew"),
        ("file.txt", "file.txt"),
        ("mysql://x", "mysql:// is none of them"),
        ("postgresql://me:hush@127.0.0.1:1/x", "127.0.0.1"),
    ],
)
@pytest.mark.shows("I.9")
def test_what_cannot_be_opened_is_one_sentence_and_2(tmp_path: Path, place: str, said: str) -> None:
    (tmp_path / "file.txt").write_text("This is no database, and it is long enough to be told from an empty one.")
    for command in ("status", "migrate"):
        ran = run(tmp_path, "db", command, "--store", place)
        assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1), ran.stderr
        assert said in ran.stderr
        assert "hush" not in ran.stderr


def test_a_place_where_no_file_can_be_is_one_sentence_and_2(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("x")
    ran = run(tmp_path, "db", "migrate", "--store", "file.txt/my.db")
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1), ran.stderr


def test_a_store_that_a_server_uses_can_be_looked_at(tmp_path: Path) -> None:
    place = str(tmp_path / "my.db")
    with serving("--engine", "fake", "--store", place) as live:
        assert f"store {place}" in live.output().decode()
        ran = run(tmp_path, "db", "status", "--store", place)
        assert (ran.returncode, ran.stdout) == (0, f"{place}: schema {NEWEST}, up to date.\n")


@pytest.mark.parametrize(
    ("place", "printed"),
    [
        ("/a/b.db", "/a/b.db"),
        ("postgresql://me:hush@h:5/x?a=b", "postgresql://me@h:5/x?a=b"),
        ("postgresql://h/x", "postgresql://h/x"),
        ("postgresql://me@h/x", "postgresql://me@h/x"),
        ("postgresql://:hush@h/x", "postgresql://h/x"),
        ("postgresql://h/x?password=hush&a=b&sslpassword=hush", "postgresql://h/x?a=b"),
    ],
)
def test_a_password_is_not_printed(place: str, printed: str) -> None:
    assert shown(place) == printed
