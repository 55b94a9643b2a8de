"""`antiphon db`: what it prints about a store, and the exit codes for scripts.

Covers `stores/sqlite_file.py`.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from antiphon.cli.terminal import redact_password
from antiphon.stores.schema import load_migrations
from tests.cli.process import run_antiphon
from tests.support.server_process import run_server

NAMES = ", ".join(migration.name for migration in load_migrations("sqlite"))
NEWEST = len(load_migrations("sqlite"))


def test_migrate_updates_the_schema_and_status_reports_it(tmp_path: Path) -> None:
    store = tmp_path / "state" / "my.db"
    before = run_antiphon(tmp_path, "db", "status", "--store", str(store))
    assert (before.returncode, before.stderr) == (1, "")
    assert before.stdout == f"{store}: schema 0 of {NEWEST}; pending: {NAMES}. Run: antiphon db migrate\n"
    assert not store.exists()
    migrated = run_antiphon(tmp_path, "db", "migrate", "--store", str(store))
    assert (migrated.returncode, migrated.stdout) == (0, f"{store}: applied {NAMES}.\n")
    after = run_antiphon(tmp_path, "db", "status", "--store", str(store))
    assert (after.returncode, after.stdout) == (0, f"{store}: schema {NEWEST}, up to date.\n")
    again = run_antiphon(tmp_path, "db", "migrate", "--store", str(store))
    assert (again.returncode, again.stdout) == (0, f"{store}: up to date, nothing to migrate.\n")


def test_the_default_store_is_the_one_of_the_server(tmp_path: Path) -> None:
    store = tmp_path / "antiphon" / "antiphon.db"
    assert run_antiphon(tmp_path, "db", "migrate").stdout == f"{store}: applied {NAMES}.\n"
    assert store.exists()
    (tmp_path / "antiphon.toml").write_text('store = "other.db"\n')
    assert run_antiphon(tmp_path, "db", "migrate").stdout == f"other.db: applied {NAMES}.\n"


def test_a_store_of_a_newer_version_is_reported_and_not_changed(tmp_path: Path) -> None:
    store = str(tmp_path / "my.db")
    run_antiphon(tmp_path, "db", "migrate", "--store", store)
    with closing(sqlite3.connect(store)) as newer:
        newer.execute("INSERT INTO migrations (number, name) VALUES (99, '0099_later')")
        newer.commit()
    status = run_antiphon(tmp_path, "db", "status", "--store", store)
    assert (status.returncode, status.stdout) == (
        1,
        f"{store}: schema 99 of a newer Antiphon; this version supports {NEWEST}.\n",
    )
    for command in (("db", "migrate"), ("serve", "--engine", "fake", "--port", "0")):
        ran = run_antiphon(tmp_path, *command, "--store", store)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert ran.stderr.startswith("antiphon: The store was made by a newer Antiphon")
        assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        ("memory", "in memory is created at every start"),
        ("file.txt", "file.txt"),
        ("mysql://x", "mysql:// is not supported"),
        ("postgresql://me:hush@127.0.0.1:1/x", "127.0.0.1"),
    ],
)
@pytest.mark.shows("I.9")
def test_a_store_that_cannot_be_opened_prints_one_message_and_exits_with_2(
    tmp_path: Path, store: str, expected: str
) -> None:
    (tmp_path / "file.txt").write_text("This is not a database, and it is too long to be taken for an empty one.")
    for command in ("status", "migrate"):
        ran = run_antiphon(tmp_path, "db", command, "--store", store)
        assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1), ran.stderr
        assert expected in ran.stderr
        assert "hush" not in ran.stderr


def test_an_impossible_path_prints_one_message_and_exits_with_2(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("x")
    ran = run_antiphon(tmp_path, "db", "migrate", "--store", "file.txt/my.db")
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1), ran.stderr


def test_status_works_while_a_server_uses_the_store(tmp_path: Path) -> None:
    store = str(tmp_path / "my.db")
    with run_server("--engine", "fake", "--store", store) as server:
        assert f"store {store}" in server.read_output().decode()
        ran = run_antiphon(tmp_path, "db", "status", "--store", store)
        assert (ran.returncode, ran.stdout) == (0, f"{store}: schema {NEWEST}, up to date.\n")


@pytest.mark.parametrize(
    ("store", "printed"),
    [
        ("/a/b.db", "/a/b.db"),
        ("postgresql://me:hush@h:5/x?a=b", "postgresql://me@h:5/x?a=b"),
        ("postgresql://h/x", "postgresql://h/x"),
        ("postgresql://me@h/x", "postgresql://me@h/x"),
        ("postgresql://:hush@h/x", "postgresql://h/x"),
        ("postgresql://h/x?password=hush&a=b&sslpassword=hush", "postgresql://h/x?a=b"),
    ],
)
def test_a_password_is_not_printed(store: str, printed: str) -> None:
    assert redact_password(store) == printed
