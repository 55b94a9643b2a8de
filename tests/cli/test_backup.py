"""`antiphon db backup`: a consistent copy, taken while a server writes, from which a server can start."""

import json
import shutil
import sqlite3
import subprocess
import threading
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.process import TIMEOUT_SECONDS, run_antiphon
from tests.support.server_process import ServerProcess, run_server
from tests.support.services import Postgres, postgres_home


def post_until_stopped(server: ServerProcess, responses: list[tuple[str, bytes]], stop: threading.Event) -> None:
    while not stop.is_set():
        status, body = server.post({"model": "fake", "input": f"number {len(responses)}"})
        assert status == 200
        responses.append((json.loads(body)["id"], body))


def test_a_backup_taken_while_a_server_writes_can_be_restored(tmp_path: Path) -> None:
    """Follows docs/upgrades.md."""
    store, copy = tmp_path / "store.db", tmp_path / "copies" / "one.db"
    copy.parent.mkdir()
    responses: list[tuple[str, bytes]] = []
    with run_server("--engine", "fake", "--store", str(store)) as server:
        assert server.post({"model": "fake", "input": "first"})[0] == 200
        stop = threading.Event()
        writer = threading.Thread(target=post_until_stopped, args=(server, responses, stop))
        writer.start()
        while len(responses) < 20 and writer.is_alive():
            stop.wait(0.01)
        before = len(responses)
        ran = run_antiphon(tmp_path, "db", "backup", "--store", str(store), str(copy))
        stop.set()
        writer.join(30)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == f"{copy}: {copy.stat().st_size} bytes.\n"
    assert copy.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(copy)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert [path.name for path in copy.parent.iterdir()] == ["one.db"]
    restored = tmp_path / "restored.db"
    shutil.copy(copy, restored)
    with run_server("--engine", "fake", "--store", str(restored)) as server:
        for id, body in responses[:before]:
            assert server.get(f"/v1/responses/{id}") == (200, body)
        assert server.post({"model": "fake", "input": "goes on", "previous_response_id": responses[0][0]})[0] == 200


def test_a_postgresql_dump_can_be_restored(tmp_path: Path, postgres: Postgres) -> None:
    """Uses the commands of docs/upgrades.md and restores into a database that already has tables."""
    dump = tmp_path / "antiphon.dump"
    with postgres.temporary_database() as url, postgres.temporary_database() as other:
        with run_server("--engine", "fake", "--store", url) as server:
            status, body = server.post({"model": "fake", "input": "hi"})
            assert status == 200
            run_postgres_tool("pg_dump", "--format=custom", f"--file={dump}", url)
        assert run_antiphon(tmp_path, "db", "migrate", "--store", other).returncode == 0
        run_postgres_tool("pg_restore", "--clean", "--if-exists", "--no-owner", f"--dbname={other}", str(dump))
        with run_server("--engine", "fake", "--store", other) as server:
            assert server.get(f"/v1/responses/{json.loads(body)['id']}") == (200, body)


def run_postgres_tool(name: str, *arguments: str) -> None:
    home = postgres_home()
    assert home
    subprocess.run([home / "bin" / name, *arguments], check=True, capture_output=True, timeout=TIMEOUT_SECONDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--store", "no.db", "copy.db"], "There is no store no.db to copy."),
        (["--store", "text.db", "copy.db"], "text.db cannot be copied: "),
        (["--store", "text.db", "text.db"], "text.db already exists: name another file for the copy."),
        (
            ["--store", "text.db", "no/folder/copy.db"],
            "no/folder/copy.db cannot be created: No such file or directory.",
        ),
        (["--store", "memory", "copy.db"], "Only SQLite stores can be copied; "),
        (["--store", "postgresql://me:hush@db/x", "copy.db"], "Only SQLite stores can be copied; "),
    ],
)
def test_a_failed_backup_prints_one_message_and_leaves_no_file(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "text.db").write_text("not a database, " * 100)
    ran = run_antiphon(tmp_path, "db", "backup", *arguments)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert ran.stderr.startswith(f"antiphon: {message}")
    assert [path.name for path in tmp_path.iterdir()] == ["text.db"]
