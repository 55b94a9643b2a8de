"""`antiphon doctor` in situations that are really wrong: what it says, how it is mended, and the exit code."""

import contextlib
import json
import os
import socket
import sqlite3
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from antiphon.cli.commands import cli
from antiphon.cli.doctor.settings import EXTRAS
from tests.cli.process import COMMAND, DEADLINE, clean, run
from tests.support.paths import ROOT
from tests.support.server_process import serving
from tests.support.services import Postgres, Redis

FAKE = ("--engine", "fake", "--port", "0")
SECRET = "hush-hush-hush-hush"

Found = dict[str, list[dict[str, Any]]]


def examine(folder: Path, *flags: str) -> tuple[int, Found]:
    """The exit code, and what was found by check. In this process, which has loaded everything already."""
    gone = {name: None for name in os.environ if name.startswith("ANTIPHON_")}
    with contextlib.chdir(folder):
        ran = CliRunner().invoke(
            cli, ["doctor", "--json", *flags], env={**gone, **clean(folder)}, catch_exceptions=False
        )
    assert SECRET not in ran.output
    assert ran.stderr == ""
    report = json.loads(ran.stdout)
    found: Found = {}
    for line in report["findings"]:
        found.setdefault(line["check"], []).append(line)
    assert report["ok"] is (ran.exit_code == 0)
    return ran.exit_code, found


def worst(found: Found, check: str) -> dict[str, Any]:
    return max(found[check], key=lambda line: ["ok", "warning", "wrong"].index(line["level"]))


def wrong(found: Found) -> set[str]:
    return {line["check"] for lines in found.values() for line in lines if line["level"] == "wrong"}


def test_with_nothing_wrong_there_is_a_line_for_every_check(tmp_path: Path) -> None:
    ran = run(tmp_path, "doctor", *FAKE, "--store", "memory")
    assert (ran.returncode, ran.stderr) == (0, "")
    checks = ["configuration", "settings", "files", "extras", "port", "keys", "store", "live log", "engines", "model"]
    assert [line[9:23].strip() for line in ran.stdout.splitlines()][:10] == checks
    assert "wrong" not in {line.split()[0] for line in ran.stdout.splitlines()}


def test_every_setting_that_is_wrong_is_named_not_only_the_first(tmp_path: Path) -> None:
    (tmp_path / "antiphon.toml").write_text('prot = 1\nlog_level = "loud"\n[[engines]]\nurll = "fake"\n')
    environment = {**clean(tmp_path), "ANTIPHON_STOER": "x", "ANTIPHON_API_KEY": "not ascii ü"}
    command = [*COMMAND, "doctor", "--json", "--port", "x"]
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE)
    sentences = [line["text"] for line in json.loads(ran.stdout)["findings"]]
    assert ran.returncode == 1
    assert {line["check"] for line in json.loads(ran.stdout)["findings"]} == {"configuration"}
    for part in (
        "prot in antiphon.toml",
        "log_level",
        "[[engines]]",
        "ANTIPHON_STOER",
        "ANTIPHON_API_KEY",
        "--port is",
    ):
        assert any(part in sentence for sentence in sentences), part
    assert "ü" not in ran.stdout
    assert len(sentences) == 6


def test_settings_that_contradict_each_other_are_told(tmp_path: Path) -> None:
    code, found = examine(tmp_path, "--workers", "2", "--store", "memory", "--engine", "fake", "--port", "0")
    assert (code, wrong(found)) == (1, {"settings"})
    assert worst(found, "settings")["text"].startswith("Several workers need a store")
    flags = ("--disable-store", "--store", "x.db", "--default-output-tokens", "9", "--max-output-tokens", "3")
    code, found = examine(tmp_path, *FAKE, *flags)
    assert (code, len(found["settings"])) == (0, 2)
    code, found = examine(
        tmp_path, "--engine", "steam", "--port", "0", "--store", "memory", "--alias", "a=b", "--alias", "b=c"
    )
    assert "There is no engine 'steam'" in " ".join(line["text"] for line in found["settings"])
    assert len(found["settings"]) == 2


def test_a_file_that_is_named_and_missing_is_told(tmp_path: Path) -> None:
    code, found = examine(tmp_path, *FAKE, "--store", "memory", "--fake-script", "no.toml", "--engine-ca", "no.pem")
    assert code == 1
    assert [line["text"] for line in found["files"]] == [
        "--engine-ca names no.pem, which is not there.",
        "--fake-script names no.toml, which is not there.",
    ]


@pytest.mark.shows("I.9")
def test_a_taken_port_is_told_with_who_has_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, found = examine(tmp_path, "--engine", "fake", "--store", "memory", "--port", str(port))
    assert (code, wrong(found)) == (1, {"port"})
    assert f"Port {port} on 127.0.0.1 is in use by " in worst(found, "port")["text"]


def test_a_server_of_ours_on_the_port_is_no_more_than_a_warning(tmp_path: Path) -> None:
    with serving("--engine", "fake") as live:
        code, found = examine(tmp_path, "--engine", "fake", "--store", "memory", "--port", str(live.port))
    assert (code, worst(found, "port")["level"]) == (0, "warning")
    assert f"Antiphon {metadata.version('antiphon')} by " in worst(found, "port")["text"]


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    code, found = examine(tmp_path, *FAKE, "--store", "/proc/antiphon/store.db")  # where not even root may write
    assert (code, wrong(found)) == (1, {"store"})
    assert "cannot be made in /proc" in worst(found, "store")["text"]
    (tmp_path / "file").touch()
    code, found = examine(tmp_path, *FAKE, "--store", "file/store.db")
    assert (code, wrong(found)) == (1, {"store"})


def test_a_store_that_is_none_or_is_newer_is_told_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_text("not a database, " * 100)
    code, found = examine(tmp_path, *FAKE, "--store", str(path))
    assert (code, wrong(found)) == (1, {"store"})
    path.unlink()
    assert run(tmp_path, "db", "migrate", "--store", str(path)).returncode == 0
    with closing(sqlite3.connect(path)) as database:
        database.execute("INSERT INTO migrations VALUES (9000, 'from the future')")
        database.commit()
    code, found = examine(tmp_path, *FAKE, "--store", str(path))
    assert (code, wrong(found)) == (1, {"store"})
    assert "schema 9000 is of a newer Antiphon" in worst(found, "store")["text"]


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    code, found = examine(tmp_path, *FAKE, "--store", str(tmp_path / "new" / "store.db"))
    assert (code, found["store"][0]["level"]) == (0, "ok")
    assert not (tmp_path / "new").exists()


def test_a_disk_with_too_little_room_is_told(tmp_path: Path) -> None:
    code, found = examine(tmp_path, *FAKE, "--store", "store.db", "--shed-free-disk", str(1 << 60))
    assert (code, wrong(found)) == (1, {"store"})


def test_a_postgresql_is_told_with_its_version_and_one_that_is_down_is_wrong(
    tmp_path: Path, postgres: Postgres
) -> None:
    with postgres.database() as url:
        code, found = examine(tmp_path, *FAKE, "--store", url)
        assert code == 0
        assert "PostgreSQL 1" in found["store"][0]["text"]
        assert "empty" in found["store"][0]["text"]
    code, found = examine(
        tmp_path, *FAKE, "--store", f"postgresql://me:{SECRET}@127.0.0.1:1/antiphon?password={SECRET}"
    )
    assert (code, wrong(found)) == (1, {"store"})
    assert "PostgreSQL at 127.0.0.1:1/antiphon does not answer" in worst(found, "store")["text"]
    code, found = examine(tmp_path, *FAKE, "--store", postgres.url("no_such_database"))
    assert "has no such database" in worst(found, "store")["text"]


def test_a_redis_is_told_with_its_version_and_one_that_is_down_is_wrong(
    tmp_path: Path, postgres_url: str, redis: Redis
) -> None:
    code, found = examine(tmp_path, *FAKE, "--store", postgres_url, "--live", redis.url)
    assert (code, [line["level"] for line in found["live log"]]) == (0, ["ok"])
    code, found = examine(tmp_path, *FAKE, "--store", postgres_url, "--live", f"redis://:{SECRET}@127.0.0.1:1")
    assert (code, wrong(found)) == (1, {"live log"})


def test_an_engine_is_told_with_its_models_and_one_that_is_down_is_wrong(tmp_path: Path) -> None:
    with serving("--engine", "fake", "--served-model-name", "parrot") as live:
        up, down = f"openai://127.0.0.1:{live.port}", "vllm://127.0.0.1:1"
        common = ("--store", "memory", "--port", "0", "--engine", up)
        code, found = examine(tmp_path, *common, "--alias", "fast=no-such-model")
        assert code == 0
        assert "parrot" in found["engines"][0]["text"]
        assert any("fast stands for no-such-model" in line["text"] for line in found["engines"])
        code, found = examine(tmp_path, *common, "--engine", down, "--engine-key", f"127.0.0.1:1={SECRET}")
    assert (code, wrong(found)) == (1, {"engines"})
    assert f"vllm at {down} is not there" in worst(found, "engines")["text"]


def test_a_model_file_that_is_broken_is_wrong_and_one_to_be_fetched_is_not(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    code, found = examine(tmp_path, "broken.gguf", "--port", "0", "--store", "memory")
    assert (code, wrong(found)) == (1, {"model"})
    (tmp_path / "cache" / "models").mkdir(parents=True)
    (tmp_path / "cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF")
    code, found = examine(tmp_path, "--port", "0", "--store", "memory", "--cache-dir", "cache")
    assert (code, found["model"][0]["level"]) == (0, "warning")
    assert "its hash is wrong" in found["model"][0]["text"]
    assert "is fetched when somebody asks for it" in found["model"][1]["text"]


@pytest.mark.shows("H.2")
def test_a_key_in_the_store_lets_the_server_listen_beyond_this_machine(tmp_path: Path) -> None:
    everywhere = ("--engine", "fake", "--port", "0", "--host", "0.0.0.0", "--store", "store.db")
    code, found = examine(tmp_path, *everywhere)
    assert (code, wrong(found)) == (1, {"keys"})
    assert not (tmp_path / "store.db").exists()
    assert run(tmp_path, "keys", "create", "--tenant", "acme", "--store", "store.db").returncode == 0
    code, found = examine(tmp_path, *everywhere)
    assert (code, found["keys"][0]["text"]) == (0, "0 given, 1 in the store: nobody comes in without one.")


@pytest.mark.shows("H.12")
def test_no_key_while_others_can_come_is_wrong(tmp_path: Path) -> None:
    everywhere = ("--engine", "fake", "--port", "0", "--host", "0.0.0.0")
    code, found = examine(tmp_path, *everywhere, "--store", "memory")
    assert (code, wrong(found)) == (1, {"keys"})
    code, found = examine(tmp_path, *everywhere, "--store", "memory", "--api-key", SECRET)
    assert (code, [line["level"] for line in found["keys"]]) == (0, ["ok"])
    code, found = examine(tmp_path, *everywhere, "--store", "memory", "--api-key", "short")
    assert (code, worst(found, "keys")["level"]) == (0, "warning")


def test_an_mcp_server_that_is_down_is_wrong(tmp_path: Path) -> None:
    code, found = examine(tmp_path, *FAKE, "--store", "memory", "--mcp-server", "notes=http://127.0.0.1:1/mcp")
    assert (code, wrong(found)) == (1, {"mcp"})


def test_an_access_log_that_cannot_be_written_is_wrong(tmp_path: Path) -> None:
    flags = (*FAKE, "--store", "memory", "--access-log")
    for place in ("no/log", "."):
        code, found = examine(tmp_path, *flags, place)
        assert (code, wrong(found)) == (1, {"watching"})
    code, found = examine(tmp_path, *flags, "log")
    assert (code, worst(found, "watching")["level"]) == (0, "ok")
    assert [*tmp_path.iterdir()] == [], "it only looks"


def test_a_collector_of_traces_that_is_away_is_a_warning_and_a_wrong_address_is_wrong(tmp_path: Path) -> None:
    flags = (*FAKE, "--store", "memory", "--otlp-endpoint")
    code, found = examine(tmp_path, *flags, "http://127.0.0.1:1")
    assert (code, worst(found, "watching")["text"]) == (0, "No collector of traces answers at 127.0.0.1:1.")
    with silent() as port:
        code, found = examine(tmp_path, *flags, f"http://127.0.0.1:{port}")
    assert (code, worst(found, "watching")["level"]) == (0, "ok")
    code, found = examine(tmp_path, *flags, "ftp://127.0.0.1")
    assert (code, wrong(found)) == (1, {"settings"})


def test_whatever_would_keep_a_server_from_starting_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "a.toml").write_text("nonsense = 1\n")
    flags = (*FAKE, "--store", "memory")
    for wrong_ones in (("--prompt-dir", "prompts"), ("--allow-egress", "no host!")):
        code, found = examine(tmp_path, *flags, *wrong_ones)
        assert (code, wrong(found)) == (1, {"settings"})
        assert run(tmp_path, "serve", *flags, *wrong_ones).stderr == f"antiphon: {found['settings'][0]['text']}\n"


def test_one_thing_that_is_wrong_is_told_once_with_what_mends_it(tmp_path: Path) -> None:
    code, found = examine(tmp_path, *FAKE, "--store", "mysql://db/antiphon")
    assert (code, wrong(found)) == (1, {"settings"})
    down = (("store", f"postgresql://u:{SECRET}@127.0.0.1:1/db"), ("live", f"redis://:{SECRET}@127.0.0.1:1/0"))
    for setting, address in down:
        code, found = examine(tmp_path, *FAKE, f"--{setting}", address)
        (line,) = [line for lines in found.values() for line in lines if line["level"] == "wrong"]
        assert "does not answer" in line["text"]
        assert f"or correct --{setting}" in line["mend"]


def test_too_few_open_files_are_a_warning(tmp_path: Path) -> None:
    code, found = examine(tmp_path, *FAKE, "--store", "memory", "--max-active-sessions", "100000000")
    assert (code, worst(found, "limits")["level"]) == (0, "warning")
    assert "--max-active-sessions 100000000" in worst(found, "limits")["text"]


def test_every_extra_is_known_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert EXTRAS.keys() == project["optional-dependencies"].keys()
    monkeypatch.setitem(EXTRAS, "web", "no_such_package")
    flags = (*FAKE, "--store", "memory")
    code, found = examine(tmp_path, *flags)
    assert (code, found["extras"][0]["level"]) == (0, "ok")
    code, found = examine(tmp_path, *flags, "--web-search-url", f"json+http://127.0.0.1:1/?key={SECRET}&q={{query}}")
    assert (code, wrong(found)) == (1, {"extras"})
    assert worst(found, "extras")["mend"] == "pip install 'antiphon[web]'"


@contextmanager
def silent() -> Iterator[int]:
    """Somebody who takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server.getsockname()[1]


def test_whoever_is_silent_holds_nobody_up_for_long(tmp_path: Path) -> None:
    with silent() as port:
        flags = ("--store", f"postgresql://127.0.0.1:{port}/x", "--engine", f"vllm://127.0.0.1:{port}")
        code, found = examine(tmp_path, *flags, "--live", f"redis://127.0.0.1:{port}", "--port", "0")
    assert (code, wrong(found)) == (1, {"store", "engines", "live log"})
