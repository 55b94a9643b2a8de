"""`antiphon doctor` in real failure situations: its findings, its remedies and its exit code.

Covers `cli/doctor/command.py`, `cli/doctor/engines.py`, `cli/doctor/environment.py`, `cli/doctor/findings.py`,
`cli/doctor/plugins.py`, `cli/doctor/settings.py`, `cli/doctor/storage.py` and `cli/doctor/vector_stores.py`.
"""

import contextlib
import json
import os
import re
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
from antiphon.cli.doctor import command as doctor_command
from antiphon.cli.doctor import engines, vector_stores
from antiphon.cli.doctor.settings import EXTRA_PACKAGES, check_extras
from antiphon.config import Config
from antiphon.config.base_folders import cache_home
from antiphon.engines.embedded.known_models import EMBEDDING_MODEL
from antiphon.engines.embedded.model_files import fetch_model
from antiphon.stores import postgres_pool
from antiphon.stores.live import redis as redis_live
from tests.cli.process import COMMAND, TIMEOUT_SECONDS, clean_environment, run_antiphon
from tests.engines.embedded.hub_server import run_hub
from tests.engines.openvino.encoder_folders import write_folder
from tests.support.paths import ROOT
from tests.support.plugins import install_plugin
from tests.support.server_process import run_server
from tests.support.services import Postgres, Redis, free_port
from tests.tools.tool_server.local_tool_server import run_tool_server

FAKE = ("--engine", "fake", "--port", "0")
SECRET = "hush-hush-hush-hush"

Findings = dict[str, list[dict[str, Any]]]


def run_doctor(folder: Path, *flags: str) -> tuple[int, Findings]:
    """Run the command in this process, which has loaded everything already; return the exit code and the findings by
    check.
    """
    unset = {name: None for name in os.environ if name.startswith("ANTIPHON_")}
    with contextlib.chdir(folder):
        ran = CliRunner().invoke(
            cli, ["doctor", "--json", *flags], env={**unset, **clean_environment(folder)}, catch_exceptions=False
        )
    assert SECRET not in ran.output
    assert ran.stderr == ""
    report = json.loads(ran.stdout)
    findings: Findings = {}
    for line in report["findings"]:
        findings.setdefault(line["check"], []).append(line)
    assert report["ok"] is (ran.exit_code == 0)
    return ran.exit_code, findings


def get_worst(findings: Findings, check: str) -> dict[str, Any]:
    return max(findings[check], key=lambda line: ["ok", "warning", "wrong"].index(line["level"]))


def get_failed_checks(findings: Findings) -> set[str]:
    return {line["check"] for lines in findings.values() for line in lines if line["level"] == "wrong"}


def test_a_valid_setup_prints_one_line_per_check(tmp_path: Path) -> None:
    ran = run_antiphon(tmp_path, "doctor", *FAKE, "--store", "memory")
    assert (ran.returncode, ran.stderr) == (0, "")
    checks = ["configuration", "settings", "files", "extras", "plug-ins", "port", "keys", "store", "live log"]
    assert [line[9:23].strip() for line in ran.stdout.splitlines()][:9] == checks
    assert "wrong" not in {line.split()[0] for line in ran.stdout.splitlines()}


def test_every_invalid_setting_is_reported(tmp_path: Path) -> None:
    (tmp_path / "antiphon.toml").write_text('prot = 1\nlog_level = "loud"\n[[engines]]\nurll = "fake"\n')
    environment = {**clean_environment(tmp_path), "ANTIPHON_STOER": "x", "ANTIPHON_API_KEY": "not ascii ü"}
    command = [*COMMAND, "doctor", "--json", "--port", "x"]
    ran = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
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


def test_contradictory_settings_are_reported(tmp_path: Path) -> None:
    code, findings = run_doctor(tmp_path, "--workers", "2", "--store", "memory", "--engine", "fake", "--port", "0")
    assert (code, get_failed_checks(findings)) == (1, {"settings"})
    assert get_worst(findings, "settings")["text"].startswith("Several workers need a store")
    flags = ("--disable-store", "--store", "x.db", "--default-output-tokens", "9", "--max-output-tokens", "3")
    code, findings = run_doctor(tmp_path, *FAKE, *flags)
    assert (code, len(findings["settings"])) == (0, 2)
    code, findings = run_doctor(
        tmp_path, "--engine", "steam", "--port", "0", "--store", "memory", "--alias", "a=b", "--alias", "b=c"
    )
    assert "There is no engine 'steam'" in " ".join(line["text"] for line in findings["settings"])
    assert len(findings["settings"]) == 2


def test_missing_files_are_reported(tmp_path: Path) -> None:
    code, findings = run_doctor(
        tmp_path, *FAKE, "--store", "memory", "--fake-script", "no.toml", "--engine-ca", "no.pem"
    )
    assert code == 1
    assert [line["text"] for line in findings["files"]] == [
        "--engine-ca names no.pem, which does not exist.",
        "--fake-script names no.toml, which does not exist.",
    ]


@pytest.mark.shows("I.9")
def test_a_port_in_use_is_reported_with_its_owner(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, findings = run_doctor(tmp_path, "--engine", "fake", "--store", "memory", "--port", str(port))
    assert (code, get_failed_checks(findings)) == (1, {"port"})
    assert f"Port {port} on 127.0.0.1 is in use by " in get_worst(findings, "port")["text"]


def test_a_running_antiphon_on_the_port_is_only_a_warning(tmp_path: Path) -> None:
    with run_server("--engine", "fake") as server:
        code, findings = run_doctor(tmp_path, "--engine", "fake", "--store", "memory", "--port", str(server.port))
    assert (code, get_worst(findings, "port")["level"]) == (0, "warning")
    assert f"Antiphon {metadata.version('antiphon')} by " in get_worst(findings, "port")["text"]


def test_an_unwritable_store_folder_fails(tmp_path: Path) -> None:
    code, findings = run_doctor(tmp_path, *FAKE, "--store", "/proc/antiphon/store.db")  # not even root can write there
    assert (code, get_failed_checks(findings)) == (1, {"store"})
    assert "cannot be created in /proc" in get_worst(findings, "store")["text"]
    (tmp_path / "file").touch()
    code, findings = run_doctor(tmp_path, *FAKE, "--store", "file/store.db")
    assert (code, get_failed_checks(findings)) == (1, {"store"})


def test_an_invalid_or_newer_store_fails(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_text("not a database, " * 100)
    code, findings = run_doctor(tmp_path, *FAKE, "--store", str(path))
    assert (code, get_failed_checks(findings)) == (1, {"store"})
    path.unlink()
    assert run_antiphon(tmp_path, "db", "migrate", "--store", str(path)).returncode == 0
    with closing(sqlite3.connect(path)) as database:
        database.execute("INSERT INTO migrations VALUES (9000, 'from the future')")
        database.commit()
    code, findings = run_doctor(tmp_path, *FAKE, "--store", str(path))
    assert (code, get_failed_checks(findings)) == (1, {"store"})
    assert "schema 9000 is of a newer Antiphon" in get_worst(findings, "store")["text"]


def test_a_missing_store_is_not_created(tmp_path: Path) -> None:
    code, findings = run_doctor(tmp_path, *FAKE, "--store", str(tmp_path / "new" / "store.db"))
    assert (code, findings["store"][0]["level"]) == (0, "ok")
    assert not (tmp_path / "new").exists()


def test_low_disk_space_fails(tmp_path: Path) -> None:
    code, findings = run_doctor(tmp_path, *FAKE, "--store", "store.db", "--shed-free-disk", str(1 << 60))
    assert (code, get_failed_checks(findings)) == (1, {"store"})


@pytest.fixture
def long_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use long deadlines, so that a server which answers does so in time on a busy machine too."""
    for module, name in ((doctor_command, "CHECK_SECONDS"), (postgres_pool, "DEADLINE"), (redis_live, "DEADLINE")):
        monkeypatch.setattr(module, name, 60.0)


@pytest.mark.usefixtures("long_deadlines")
def test_postgresql_is_reported_with_its_version_and_fails_when_down(tmp_path: Path, postgres: Postgres) -> None:
    with postgres.temporary_database() as url:
        code, findings = run_doctor(tmp_path, *FAKE, "--store", url)
        assert code == 0
        assert "PostgreSQL 1" in findings["store"][0]["text"]
        assert "The next start creates the extension pgvector" in findings["store"][1]["text"]
        assert "empty" in findings["store"][0]["text"]
    code, findings = run_doctor(
        tmp_path, *FAKE, "--store", f"postgresql://me:{SECRET}@127.0.0.1:1/antiphon?password={SECRET}"
    )
    assert (code, get_failed_checks(findings)) == (1, {"store"})
    assert "PostgreSQL at 127.0.0.1:1/antiphon does not answer" in get_worst(findings, "store")["text"]
    code, findings = run_doctor(tmp_path, *FAKE, "--store", postgres.url("no_such_database"))
    assert "has no such database" in get_worst(findings, "store")["text"]


@pytest.mark.usefixtures("long_deadlines")
def test_redis_is_reported_as_ok_and_fails_when_down(tmp_path: Path, postgres_url: str, redis: Redis) -> None:
    code, findings = run_doctor(tmp_path, *FAKE, "--store", postgres_url, "--live", redis.url)
    assert (code, [line["level"] for line in findings["live log"]]) == (0, ["ok"])
    code, findings = run_doctor(tmp_path, *FAKE, "--store", postgres_url, "--live", f"redis://:{SECRET}@127.0.0.1:1")
    assert (code, get_failed_checks(findings)) == (1, {"live log"})


def test_an_engine_is_reported_with_its_models_and_fails_when_down(tmp_path: Path) -> None:
    with run_server("--engine", "fake", "--served-model-name", "parrot") as server:
        up, down = f"openai://127.0.0.1:{server.port}", "vllm://127.0.0.1:1"
        common = ("--store", "memory", "--port", "0", "--engine", up)
        code, findings = run_doctor(tmp_path, *common, "--alias", "fast=no-such-model")
        assert code == 0
        assert "parrot" in findings["engines"][0]["text"]
        assert any("fast refers to no-such-model" in line["text"] for line in findings["engines"])
        code, findings = run_doctor(tmp_path, *common, "--engine", down, "--engine-key", f"127.0.0.1:1={SECRET}")
    assert (code, get_failed_checks(findings)) == (1, {"engines"})
    assert f"vllm at {down} is not available" in get_worst(findings, "engines")["text"]


def test_a_broken_model_file_fails_and_a_model_to_download_does_not(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    code, findings = run_doctor(tmp_path, "broken.gguf", "--port", "0", "--store", "memory")
    assert (code, get_failed_checks(findings)) == (1, {"model"})
    (tmp_path / "cache" / "models").mkdir(parents=True)
    (tmp_path / "cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF")
    code, findings = run_doctor(tmp_path, "--port", "0", "--store", "memory", "--cache-dir", "cache")
    assert (code, findings["model"][0]["level"]) == (0, "warning")
    assert "its hash is wrong" in findings["model"][0]["text"]
    assert "is downloaded when it is first requested" in findings["model"][1]["text"]


def test_the_rate_of_the_embedding_model_is_measured(tmp_path: Path) -> None:
    code, findings = run_doctor(tmp_path, *FAKE, "--store", "memory")
    [finding] = findings["vector stores"]
    assert (code, finding["level"]) == (0, "ok")
    assert re.match(r"fake embeds [\d,]+ tokens per second: indexing 1 MB of English text takes", finding["text"])
    code, findings = run_doctor(tmp_path, "--port", "0", "--store", "memory", "--cache-dir", "empty")
    assert (code, findings["vector stores"][0]["level"]) == (0, "ok")
    assert findings["vector stores"][0]["text"].startswith("No model embeds yet")


@pytest.mark.needs("llamacpp")
@pytest.mark.real_model
@pytest.mark.timeout(400)
def test_the_embedding_model_of_the_embedded_engine_is_loaded_and_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_stores, "_OPEN_SECONDS", 100.0)  # a busy machine
    monkeypatch.setattr(vector_stores, "_MEASURE_SECONDS", 100.0)
    monkeypatch.setattr(doctor_command, "CHECK_SECONDS", 200.0)
    cache = fetch_model(EMBEDDING_MODEL, cache_home()).parent.parent
    code, findings = run_doctor(tmp_path, "--port", "0", "--store", "memory", "--cache-dir", str(cache))
    assert code == 0
    assert re.match(r"all-minilm-l6-v2 embeds [\d,]+ tokens per second", findings["vector stores"][0]["text"])


@pytest.mark.needs("openvino")
@pytest.mark.real_engine
@pytest.mark.timeout(400)
def test_folders_that_embed_and_rank_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_stores, "_OPEN_SECONDS", 100.0)  # a busy machine
    monkeypatch.setattr(doctor_command, "CHECK_SECONDS", 200.0)
    write_folder(tmp_path / "embeds", "BertModel", "last_hidden_state")
    write_folder(tmp_path / "ranks", "BertForSequenceClassification", "logits")
    models = ("--model", str(tmp_path / "embeds"), "--model", str(tmp_path / "ranks"), "--rerank-model", "ranks")
    code, findings = run_doctor(tmp_path, "--engine", "openvino", "--port", "0", "--store", "memory", *models)
    [finding] = findings["vector stores"]  # the sample of the measurement is too long for this model
    assert (code, finding["text"].split(":")[0]) == (0, "embeds does not embed")


def test_models_of_vector_stores_that_are_not_served_are_warnings(tmp_path: Path) -> None:
    with run_server("--engine", "fake", "--served-model-name", "parrot") as server:
        engine = ("--engine", f"openai://127.0.0.1:{server.port}", "--store", "memory", "--port", "0")
        code, findings = run_doctor(tmp_path, *engine, "--embedding-model", "vectors", "--rerank-model", "parrot")
    assert code == 0
    assert [(line["level"], line["text"].split(",")[0]) for line in findings["vector stores"]] == [
        ("warning", "--embedding-model names vectors"),
        ("warning", "--rerank-model names parrot"),
    ]


@pytest.mark.shows("H.2")
def test_a_stored_key_allows_listening_beyond_loopback(tmp_path: Path) -> None:
    everywhere = ("--engine", "fake", "--port", "0", "--host", "0.0.0.0", "--store", "store.db")
    code, findings = run_doctor(tmp_path, *everywhere)
    assert (code, get_failed_checks(findings)) == (1, {"keys"})
    assert not (tmp_path / "store.db").exists()
    assert run_antiphon(tmp_path, "keys", "create", "--tenant", "acme", "--store", "store.db").returncode == 0
    code, findings = run_doctor(tmp_path, *everywhere)
    assert (code, findings["keys"][0]["text"]) == (0, "0 in the settings, 1 in the store: every client needs one.")


@pytest.mark.shows("H.12")
def test_listening_beyond_loopback_without_a_key_fails(tmp_path: Path) -> None:
    everywhere = ("--engine", "fake", "--port", "0", "--host", "0.0.0.0")
    code, findings = run_doctor(tmp_path, *everywhere, "--store", "memory")
    assert (code, get_failed_checks(findings)) == (1, {"keys"})
    code, findings = run_doctor(tmp_path, *everywhere, "--store", "memory", "--api-key", SECRET)
    assert (code, [line["level"] for line in findings["keys"]]) == (0, ["ok"])
    code, findings = run_doctor(tmp_path, *everywhere, "--store", "memory", "--api-key", "short")
    assert (code, get_worst(findings, "keys")["level"]) == (0, "warning")


def test_tool_servers_must_have_their_functions(tmp_path: Path) -> None:
    with run_tool_server() as server:
        server.server.remove_tool("find")
        pairs = f"python={server.url},browser={server.url},container=http://127.0.0.1:1/mcp"
        options = ("--store", "memory", "--tool-server", pairs, "--web-search-url", "searxng+http://127.0.0.1:1")
        code, findings = run_doctor(tmp_path, *FAKE, *options)
    assert (code, get_failed_checks(findings)) == (1, {"tool servers"})
    texts = {(one["level"], one["text"]) for one in findings["tool servers"]}
    assert ("wrong", "browser: the server has no tool find.") in texts
    assert ("ok", "python: python, search, open, exec.") in texts
    assert ("warning", "The tool server browser replaces --web-search-url.") in texts


def test_an_mcp_server_that_is_down_fails(tmp_path: Path) -> None:
    code, findings = run_doctor(tmp_path, *FAKE, "--store", "memory", "--mcp-server", "notes=http://127.0.0.1:1/mcp")
    assert (code, get_failed_checks(findings)) == (1, {"mcp"})


def test_an_unwritable_access_log_fails(tmp_path: Path) -> None:
    flags = (*FAKE, "--store", "memory", "--access-log")
    for path in ("no/log", "."):
        code, findings = run_doctor(tmp_path, *flags, path)
        assert (code, get_failed_checks(findings)) == (1, {"watching"})
    code, findings = run_doctor(tmp_path, *flags, "log")
    assert (code, get_worst(findings, "watching")["level"]) == (0, "ok")
    assert [*tmp_path.iterdir()] == [], "doctor creates no files"


def test_an_unreachable_trace_collector_warns_and_an_invalid_address_fails(tmp_path: Path) -> None:
    flags = (*FAKE, "--store", "memory", "--otlp-endpoint")
    code, findings = run_doctor(tmp_path, *flags, "http://127.0.0.1:1")
    assert (code, get_worst(findings, "watching")["text"]) == (0, "No trace collector answers at 127.0.0.1:1.")
    with run_silent_server() as port:
        code, findings = run_doctor(tmp_path, *flags, f"http://127.0.0.1:{port}")
    assert (code, get_worst(findings, "watching")["level"]) == (0, "ok")
    code, findings = run_doctor(tmp_path, *flags, "ftp://127.0.0.1")
    assert (code, get_failed_checks(findings)) == (1, {"settings"})


def test_settings_that_prevent_a_start_fail_with_the_same_message(tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "a.toml").write_text("nonsense = 1\n")
    flags = (*FAKE, "--store", "memory")
    for invalid_flags in (("--prompt-dir", "prompts"), ("--allow-egress", "no host!")):
        code, findings = run_doctor(tmp_path, *flags, *invalid_flags)
        assert (code, get_failed_checks(findings)) == (1, {"settings"})
        assert (
            run_antiphon(tmp_path, "serve", *flags, *invalid_flags).stderr
            == f"antiphon: {findings['settings'][0]['text']}\n"
        )


def test_each_problem_is_reported_once_with_its_remedy(tmp_path: Path) -> None:
    code, findings = run_doctor(tmp_path, *FAKE, "--store", "mysql://db/antiphon")
    assert (code, get_failed_checks(findings)) == (1, {"settings"})
    down = (("store", f"postgresql://u:{SECRET}@127.0.0.1:1/db"), ("live", f"redis://:{SECRET}@127.0.0.1:1/0"))
    for setting, address in down:
        code, findings = run_doctor(tmp_path, *FAKE, f"--{setting}", address)
        (line,) = [line for lines in findings.values() for line in lines if line["level"] == "wrong"]
        assert "does not answer" in line["text"]
        assert f"or correct --{setting}" in line["mend"]


def test_a_low_open_file_limit_is_a_warning(tmp_path: Path) -> None:
    code, findings = run_doctor(tmp_path, *FAKE, "--store", "memory", "--max-active-sessions", "100000000")
    assert (code, get_worst(findings, "limits")["level"]) == (0, "warning")
    assert "--max-active-sessions 100000000" in get_worst(findings, "limits")["text"]


def test_every_extra_of_the_project_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert EXTRA_PACKAGES.keys() == project["optional-dependencies"].keys() - {"all", "testing"}
    monkeypatch.setitem(EXTRA_PACKAGES, "web", "no_such_package")
    flags = (*FAKE, "--store", "memory")
    code, findings = run_doctor(tmp_path, *flags)
    assert (code, findings["extras"][0]["level"]) == (0, "ok")
    code, findings = run_doctor(
        tmp_path, *flags, "--web-search-url", f"json+http://127.0.0.1:1/?key={SECRET}&q={{query}}"
    )
    assert (code, get_failed_checks(findings)) == (1, {"extras"})
    assert get_worst(findings, "extras")["mend"] == "pip install 'antiphon[web]'"


@contextmanager
def run_silent_server() -> Iterator[int]:
    """Listen on a port and never answer; yield the port."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server.getsockname()[1]


def test_servers_that_never_answer_do_not_block_the_checks(tmp_path: Path) -> None:
    with run_silent_server() as port:
        flags = ("--store", f"postgresql://127.0.0.1:{port}/x", "--engine", f"vllm://127.0.0.1:{port}")
        code, findings = run_doctor(tmp_path, *flags, "--live", f"redis://127.0.0.1:{port}", "--port", "0")
    assert (code, get_failed_checks(findings)) == (1, {"store", "engines", "live log"})


def test_an_engine_at_a_web_address_that_cannot_be_identified_fails(tmp_path: Path) -> None:
    code, findings = run_doctor(tmp_path, "--engine", f"http://127.0.0.1:{free_port()}")
    assert code == 1
    [finding] = findings["engines"]
    assert "cannot be identified" in finding["text"]


def test_installed_plug_ins_are_listed_and_unusable_ones_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """None of them is imported: neither module exists."""
    entries = {"engines": {"vllm": "gone:A", "parrot": "gone:B"}, "stores": {"ledger": "ledger_store:Ledger"}}
    source = "from antiphon.stores.sqlite import SqliteStore\nclass Ledger(SqliteStore): pass\n"
    install_plugin(monkeypatch, tmp_path / "one", "parrot-engine", entries, "")
    install_plugin(monkeypatch, tmp_path / "two", "ledger-store", {"engines": {"parrot": "gone:B"}}, source)
    code, findings = run_doctor(tmp_path, *FAKE, "--store", "ledger://somewhere")
    installed, *unusable = findings["plug-ins"]
    assert installed["level"] == "ok"
    assert "stores ledger (parrot-engine 1.0)" in installed["text"]
    assert [(line["level"], line["text"].partition(" of ")[0]) for line in unusable] == [
        ("warning", "antiphon.engines 'parrot'"),
        ("warning", "antiphon.engines 'parrot'"),
        ("warning", "antiphon.engines 'vllm'"),
    ]
    assert "ledger://somewhere" in get_worst(findings, "store")["text"]
    assert code == 0


@pytest.mark.shows("I.63")
def test_a_model_of_the_hub_needs_its_extra_until_it_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config.from_settings(model=("hf:org/tiny-GGUF",), cache_dir=tmp_path)
    [finding] = engines.check_embedded_models(config)
    assert (finding.level, finding.mend) == ("warning", "antiphon pull hf:org/tiny-GGUF")
    monkeypatch.setitem(EXTRA_PACKAGES, "hub", "no_such_package")
    assert [finding.mend for finding in check_extras(config)] == ["pip install 'antiphon[hub]'"]
    with run_hub() as hub:
        hub.repos["org/tiny-GGUF"] = {"tiny.gguf": b"weights"}
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        assert run_antiphon(tmp_path, "pull", "hf:org/tiny-GGUF", "--cache-dir", str(tmp_path)).returncode == 0
    assert [finding.level for finding in check_extras(config)] == ["ok"]
    assert [finding.level for finding in engines.check_embedded_models(config)] == ["ok"]


def test_the_openvino_engine_needs_its_extra_and_its_models_may_be_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "openvino_model.xml").touch()
    (tmp_path / "config.json").write_text('{"vocab_size": 9, "model_type": "qwen2"}')
    config = Config.from_settings(engine=f"openvino:{tmp_path}")
    assert [finding.level for finding in engines.check_embedded_models(config)] == ["ok"]
    monkeypatch.setitem(EXTRA_PACKAGES, "openvino", "no_such_package")
    assert [finding.mend for finding in check_extras(config)] == ["pip install 'antiphon[openvino]'"]
