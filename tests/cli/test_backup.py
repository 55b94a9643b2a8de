"""`antiphon db backup`: a copy that is whole, though a server writes all the time, and that a server can start from."""

import json
import shutil
import sqlite3
import subprocess
import threading
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.process import DEADLINE, run
from tests.support.server_process import Live, serving
from tests.support.services import Postgres, postgres_home


def make(live: Live, made: list[tuple[str, bytes]], enough: threading.Event) -> None:
    while not enough.is_set():
        status, body = live.post({"model": "fake", "input": f"number {len(made)}"})
        assert status == 200
        made.append((json.loads(body)["id"], body))


def test_a_store_is_copied_while_it_is_written_and_restored(tmp_path: Path) -> None:
    """As docs/upgrades.md tells it."""
    store, copy = tmp_path / "store.db", tmp_path / "copies" / "one.db"
    copy.parent.mkdir()
    made: list[tuple[str, bytes]] = []
    with serving("--engine", "fake", "--store", str(store)) as live:
        assert live.post({"model": "fake", "input": "first"})[0] == 200
        enough = threading.Event()
        writer = threading.Thread(target=make, args=(live, made, enough))
        writer.start()
        while len(made) < 20 and writer.is_alive():
            enough.wait(0.01)
        before = len(made)
        ran = run(tmp_path, "db", "backup", "--store", str(store), str(copy))
        enough.set()
        writer.join(30)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == f"{copy}: {copy.stat().st_size} bytes.\n"
    assert copy.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(copy)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert [path.name for path in copy.parent.iterdir()] == ["one.db"]
    restored = tmp_path / "restored.db"
    shutil.copy(copy, restored)
    with serving("--engine", "fake", "--store", str(restored)) as live:
        for id, body in made[:before]:
            assert live.get(f"/v1/responses/{id}") == (200, body)
        assert live.post({"model": "fake", "input": "goes on", "previous_response_id": made[0][0]})[0] == 200


def test_a_dump_of_postgresql_can_be_restored(tmp_path: Path, postgres: Postgres) -> None:
    """With the commands of docs/upgrades.md, into a database that has older tables in it."""
    dump = tmp_path / "antiphon.dump"
    with postgres.database() as url, postgres.database() as other:
        with serving("--engine", "fake", "--store", url) as live:
            status, body = live.post({"model": "fake", "input": "hi"})
            assert status == 200
            command("pg_dump", "--format=custom", f"--file={dump}", url)
        assert run(tmp_path, "db", "migrate", "--store", other).returncode == 0
        command("pg_restore", "--clean", "--if-exists", "--no-owner", f"--dbname={other}", str(dump))
        with serving("--engine", "fake", "--store", other) as live:
            assert live.get(f"/v1/responses/{json.loads(body)['id']}") == (200, body)


def command(name: str, *arguments: str) -> None:
    home = postgres_home()
    assert home
    subprocess.run([home / "bin" / name, *arguments], check=True, capture_output=True, timeout=DEADLINE)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--store", "no.db", "copy.db"], "There is no store no.db to be copied."),
        (["--store", "text.db", "copy.db"], "text.db cannot be copied: "),
        (["--store", "text.db", "text.db"], "text.db is there already: name another file for the copy."),
        (["--store", "text.db", "no/folder/copy.db"], "no/folder/copy.db cannot be made: No such file or directory."),
        (["--store", "memory", "copy.db"], "Only a store that is a file is copied so; "),
        (["--store", "postgresql://me:hush@db/x", "copy.db"], "Only a store that is a file is copied so; "),
    ],
)
def test_what_cannot_be_copied_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    (tmp_path / "text.db").write_text("not a database, " * 100)
    ran = run(tmp_path, "db", "backup", *arguments)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert ran.stderr.startswith(f"antiphon: {sentence}")
    assert [path.name for path in tmp_path.iterdir()] == ["text.db"]
