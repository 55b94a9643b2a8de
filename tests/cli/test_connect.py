"""`antiphon connect` writes, restores and checks the files of clients.

Covers `cli/file_changes.py` and `config/client_programs.py`.
"""

import contextlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from antiphon.cli.commands import cli
from antiphon.cli.connect import QUESTION
from antiphon.clients.catalog import CLIENTS
from tests.cli.process import COMMAND, clean_environment, open_terminal
from tests.support.server_process import ServerProcess, run_server
from tests.support.without_posix import WITHOUT_POSIX

CONFIG = b'# mine\r\nmodel = "gpt-6"\r\n'


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with run_server("--engine", "fake", "--served-model-name", "parrot", "--alias", "polly=parrot") as server:
        yield server


class Home:
    """An empty home directory, in which commands are run."""

    def __init__(self, folder: Path, server: ServerProcess) -> None:
        self.folder = folder
        self.config = folder / ".codex" / "config.toml"
        self._url = server.url
        self.variables: dict[str, str] = {}
        self.program: Sequence[str] = COMMAND

    def run_here(self, *arguments: str) -> Result:
        """Run the command in this process, which has loaded everything already."""
        unset = dict.fromkeys(os.environ.keys() - self._environment.keys())
        with contextlib.chdir(self.folder):
            return CliRunner().invoke(cli, self._add_url(arguments), env={**unset, **self._environment})

    @property
    def _environment(self) -> dict[str, str]:
        return {**clean_environment(self.folder), "HOME": str(self.folder), **self.variables}

    def _add_url(self, arguments: tuple[str, ...]) -> list[str]:
        return ["connect", *arguments, *([] if "--undo" in arguments else ["--url", self._url])]

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.program, *self._add_url(arguments)],
            cwd=self.folder,
            env=self._environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def write_config(self, content: bytes = CONFIG) -> None:
        self.config.parent.mkdir(exist_ok=True)
        self.config.write_bytes(content)

    def list_files(self) -> list[str]:
        """Return all files except those of Antiphon itself."""
        files = [path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()]
        return sorted(file for file in files if not file.startswith("antiphon/"))


@pytest.fixture
def home(tmp_path: Path, server: ServerProcess) -> Home:
    return Home(tmp_path, server)


@pytest.mark.parametrize("client", ["openai-python", "agents-sdk"])
@pytest.mark.shows("I2.2")
def test_the_program_of_a_library_asks_the_server(home: Home, client: str) -> None:
    assert home.run(client, "--yes").returncode == 0
    (file,) = home.list_files()
    asked = subprocess.run(
        [sys.executable, home.folder / file], capture_output=True, text=True, timeout=100, check=False
    )
    assert (asked.returncode, bool(asked.stdout.strip())) == (0, True), asked.stderr


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.shows("I2.2", "I2.4")
def test_each_client_is_connected_and_nothing_remains_after_undo(home: Home, client: str) -> None:
    ran = home.run_here(client, "--yes")
    assert ran.exit_code == 0, ran.stderr
    files = home.list_files()
    assert len(files) == len([file for file in CLIENTS[client].files if not file.only_with_key])
    for file in files:
        assert "parrot" in (home.folder / file).read_text()
        assert f"+++ {home.folder / file}" in ran.stdout
    again = home.run_here(client, "--yes")
    assert (again.exit_code, again.stdout) == (0, "")
    undone = home.run_here(client, "--undo", "--yes")
    assert undone.exit_code == 0, undone.stderr
    assert home.list_files() == []
    assert {path.name for path in home.folder.iterdir()} == {"antiphon"}


@pytest.mark.shows("I2.3", "I2.4")
def test_an_existing_file_is_restored_byte_for_byte_after_several_changes(home: Home) -> None:
    home.write_config()
    home.config.chmod(0o640)
    assert home.run("codex", "--yes").returncode == 0
    assert home.run("codex", "--yes", "--model", "polly").returncode == 0
    assert b'model = "polly"\r\n' in home.config.read_bytes()
    assert home.run("codex", "--undo", "--yes").returncode == 0
    assert (home.config.read_bytes(), home.list_files()) == (CONFIG, [".codex/config.toml"])
    assert stat.S_IMODE(home.config.stat().st_mode) == 0o640
    nothing = home.run("codex", "--undo", "--yes")
    assert (nothing.returncode, nothing.stderr) == (
        2,
        "antiphon: There is nothing to undo: no file of Codex was changed by this command.\n",
    )


@pytest.mark.shows("I2.4")
def test_changes_of_others_are_not_lost_by_undo(home: Home) -> None:
    home.write_config()
    home.run("codex", "--yes")
    home.config.write_bytes(home.config.read_bytes() + b"[projects.x]\r\n")
    refused = home.run("codex", "--undo", "--yes")
    assert refused.returncode == 2
    assert f"{home.config} changed since." in refused.stderr
    shown = home.run("codex", "--undo", stdin="n\n")
    assert "-[projects.x]" in shown.stdout
    assert b"[projects.x]" in home.config.read_bytes()
    home.run("codex", "--yes", "--model", "polly")
    for expected in (b'model = "parrot"', CONFIG):
        assert home.run("codex", "--undo", stdin="y\n").returncode == 0
        assert expected in home.config.read_bytes()


@pytest.mark.shows("I2.2")
def test_the_difference_is_shown_before_the_question(tmp_path: Path, server: ServerProcess) -> None:
    with open_terminal(tmp_path, "connect", "open-webui", "--url", server.url) as terminal:
        assert f"+OPENAI_API_BASE_URL={server.v1}" in terminal.wait_for("Write this? [y/N]: ")
        assert not (tmp_path / "open-webui.env").exists()
        terminal.type("y\r")
        terminal.wait_for("Open WebUI uses parrot")
    assert (tmp_path / "open-webui.env").exists()


@pytest.mark.parametrize("arguments", [["--print"], []])
@pytest.mark.shows("I2.2")
def test_nothing_is_written_without_consent(home: Home, arguments: list[str]) -> None:
    home.write_config()
    ran = home.run("codex", *arguments)
    assert ran.returncode == (0 if arguments else 1)
    assert '"context_window": 32768' in ran.stdout
    assert (home.list_files(), home.config.read_bytes()) == ([".codex/config.toml"], CONFIG)


@pytest.mark.shows("I2.3")
def test_a_file_that_cannot_be_edited_prevents_all_changes(home: Home) -> None:
    home.write_config(b"model_providers = {}\n")
    ran = home.run("codex", "--yes")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("antiphon: ~/.codex/config.toml cannot be edited: ")
    assert home.list_files() == [".codex/config.toml"]


@pytest.mark.shows("I2.3")
def test_a_link_stays_a_link(home: Home) -> None:
    target = home.folder / "dotfiles.toml"
    target.write_bytes(CONFIG)
    home.config.parent.mkdir()
    home.config.symlink_to(target)
    assert home.run("codex", "--yes").returncode == 0
    assert home.config.is_symlink()
    assert b"antiphon" in target.read_bytes()
    assert home.run("codex", "--undo", "--yes").returncode == 0
    assert (home.config.is_symlink(), target.read_bytes()) == (True, CONFIG)


def test_folders_are_those_of_the_environment_or_of_the_command_line(home: Home) -> None:
    home.variables = {"CODEX_HOME": str(home.folder / "a")}
    home.run("codex", "--yes")
    (home.folder / "b").mkdir()
    (home.folder / "b" / "opencode.jsonc").write_text("{ // mine\n}\n")
    home.run("opencode", "--yes", "--folder", "b")
    assert home.list_files() == ["a/antiphon-models.json", "a/config.toml", "b/opencode.jsonc"]
    assert "// mine" in (home.folder / "b" / "opencode.jsonc").read_text()


@pytest.mark.parametrize(
    ("client", "mac", "windows"),
    [
        ("codex", ".codex", ".codex"),
        ("opencode", ".config/opencode", ".config/opencode"),
        ("llm", "Library/Application Support/io.datasette.llm", "Roaming/io.datasette.llm"),
        ("zed", ".config/zed", "Roaming/Zed"),
        ("vscode", "Library/Application Support/Code/User", "Roaming/Code/User"),
    ],
)
def test_folders_are_those_of_the_system(
    home: Home, monkeypatch: pytest.MonkeyPatch, client: str, mac: str, windows: str
) -> None:
    home.variables = {"APPDATA": str(home.folder / "Roaming"), "XDG_CONFIG_HOME": ""}
    for platform, folder in (("darwin", mac), ("win32", windows)):
        monkeypatch.setattr("antiphon.config.client_programs.sys.platform", platform)
        shown = home.run_here(client, "--print").stdout
        assert f"# {home.folder / folder}/" in shown


@pytest.mark.shows("I2.2")
def test_a_key_is_written_only_where_it_has_to_be_and_never_shown(tmp_path: Path) -> None:
    with run_server("--engine", "fake", "--api-key", "sk-secret") as server:
        home = Home(tmp_path, server)
        refused = home.run("claude", "--yes")
        assert refused.returncode == 1
        assert "ANTIPHON_API_KEY" in refused.stderr
        home.variables = {"ANTIPHON_API_KEY": "sk-secret"}
        for client in ("claude", "codex", "llm"):
            ran = home.run(client, "--yes")
            assert ran.returncode == 0, ran.stderr
            assert "sk-secret" not in ran.stdout + ran.stderr
    settings = tmp_path / ".claude" / "settings.json"
    assert json.loads(settings.read_text())["env"]["ANTHROPIC_AUTH_TOKEN"] == "sk-secret"
    assert stat.S_IMODE(settings.stat().st_mode) == 0o600
    assert 'env_key = "ANTIPHON_API_KEY"' in home.config.read_text()
    assert json.loads((tmp_path / "io.datasette.llm" / "keys.json").read_text()) == {"antiphon": "sk-secret"}


def test_unknown_models_and_clients_are_errors(tmp_path: Path, server: ServerProcess) -> None:
    with run_server("--engine", f"openai://127.0.0.1:{server.port}") as strict_server:
        home = Home(tmp_path, strict_server)
        unknown = home.run("codex", "--model", "nobody", "--yes")
    assert unknown.returncode == 1
    assert "The model 'nobody' does not exist here" in unknown.stderr
    assert home.run("emacs").returncode == 2
    assert home.list_files() == []


def write_program(home: Home, name: str, script: str) -> None:
    folder = home.folder / "bin"
    folder.mkdir()
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    home.variables = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.shows("I2.5")
def test_the_check_prints_the_answer_of_the_client(home: Home) -> None:
    write_program(home, "llm", 'echo "$3 was asked with $2"')
    ran = home.run("llm", "--yes", "--check")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith(f"{QUESTION} was asked with antiphon/parrot\n")


@pytest.mark.shows("I4.5")
def test_a_client_is_connected_checked_and_restored_without_posix(home: Home) -> None:
    home.program = WITHOUT_POSIX
    write_program(home, "codex", "echo Yes.")
    ran = home.run("codex", "--yes", "--check")
    assert (ran.returncode, ran.stdout.endswith("+}\nYes.\n")) == (0, True), ran.stderr
    assert home.config.exists()
    undone = home.run("codex", "--undo", "--yes")
    assert (undone.returncode, home.config.exists()) == (0, False), undone.stderr


@pytest.mark.shows("I2.5")
def test_the_check_reports_a_client_that_fails_or_is_missing(home: Home) -> None:
    write_program(home, "codex", "echo it broke >&2; exit 3")
    failed = home.run("codex", "--yes", "--check")
    assert failed.returncode == 1
    assert failed.stderr.endswith("antiphon: Codex did not answer (exit code 3).\nit broke\n")
    home.variables = {"PATH": "/nowhere"}
    missing = home.run("claude", "--yes", "--check")
    assert (missing.returncode, "Claude Code is not installed" in missing.stderr) == (2, True)
    assert "has no command for one question" in home.run("zed", "--yes", "--check").stderr


def test_a_damaged_log_of_changes_is_an_error(home: Home) -> None:
    log = home.folder / "antiphon" / "connect" / "codex.json"
    log.parent.mkdir(parents=True)
    log.write_text("x")
    ran = home.run("codex", "--yes")
    assert (ran.returncode, "is damaged" in ran.stderr) == (2, True)
