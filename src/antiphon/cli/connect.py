"""`antiphon connect`: write the configuration of a client for a running server, take it back, and try it."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import click
from msgspec.json import Decoder

from antiphon.cli.client import CONTROL_CHARACTERS, make_client
from antiphon.cli.file_changes import ChangeLog, FileChange, read_content
from antiphon.cli.options import SettingsCommand, settings_by_name, settings_in_groups
from antiphon.clients.base import KEY_VARIABLE, ClientFile, ClientSetup, ServerConnection
from antiphon.clients.catalog import CLIENTS, list_text_models
from antiphon.clients.text_files import edit_text, render_file
from antiphon.config import Config
from antiphon.config.base_folders import data_home
from antiphon.config.client_programs import find_program_folder, make_environment
from antiphon.config.settings import CLIENT
from antiphon.errors import RequestFailed, StartupError
from antiphon.protocol.types.operations.models import ModelList, ModelObject

CONNECT = f"""Configure a client for a running server.

CLIENT is one of: {", ".join(CLIENTS)}.

\b
  antiphon connect codex                   show what would change, ask, and write it
  antiphon connect codex --check           and ask the model a question through Codex
  antiphon connect codex --undo            restore the files as they were
  antiphon connect opencode --print        print the files, and write nothing
  antiphon connect claude --url https://ai.example.com --model qwen3-coder
"""

QUESTION = "Reply with one short sentence: are you there?"
CHECK_SECONDS = 300.0
_MAX_SHOWN = 2000  # characters of a client's output
_MODELS, _MODEL = Decoder(ModelList), Decoder(ModelObject)


@click.command(
    cls=SettingsCommand, rows=[*settings_in_groups(CLIENT), *settings_by_name("api_key", "config")], help=CONNECT
)
@click.argument("client", metavar="CLIENT", type=click.Choice([*CLIENTS]))
@click.option("--model", metavar="NAME", help="Model to use.  [the first model of the server]")
@click.option("--folder", metavar="PATH", type=click.Path(path_type=Path), help="Folder of the client's files.")
@click.option("--print", "only_print", is_flag=True, help="Print the files of a new configuration only.")
@click.option("--yes", is_flag=True, help="Do not ask before files are written.")
@click.option("--undo", is_flag=True, help="Restore the files as they were before.")
@click.option("--check", is_flag=True, help="Ask the model a question through the client, if it is installed.")
def connect(
    config: Config,
    client: str,
    model: str | None,
    folder: Path | None,
    only_print: bool,
    yes: bool,
    undo: bool,
    check: bool,
) -> None:
    setup, log = CLIENTS[client], ChangeLog(data_home() / "connect" / f"{client}.json")
    if undo:
        _undo(setup, log, yes)
        return
    connection = _ask_server(config, model)
    files = setup.list_files(connection)
    if only_print:
        for file in files:
            click.echo(f"# {_find_path(file, folder)}\n{render_file(file, connection)}")
        return
    changes = [_plan_change(file, connection, folder) for file in files]
    changes = [change for change in changes if change.before != change.after]
    if changes:
        _show_and_confirm(changes, yes, connection.key)
        log.apply(changes, private=bool(connection.key) and not setup.reads_key)
    click.echo(f"{setup.title} uses {connection.model} at {connection.url}.", err=True)
    for hint in _list_hints(setup, connection):
        click.echo(hint, err=True)
    if check:
        _check(setup, connection)


def _ask_server(config: Config, name: str | None) -> ServerConnection:
    """Return what the client has to know; the chosen model comes first. Raises RequestFailed."""
    client = make_client(config)
    models = list_text_models(client.run(client.http.get("/models", _MODELS)).data, name)
    if name is not None and (not models or models[0].id != name):
        models = [client.run(client.http.get(f"/models/{quote(name)}", _MODEL)), *models]
    if not models:
        raise RequestFailed(f"{client.url} has no model that generates text at present.")
    key = config.server.api_key[0] if config.server.api_key else ""
    return ServerConnection(url=re.sub(r"/v\d+$", "", client.url), models=models, key=key)


def _find_path(file: ClientFile, folder: Path | None) -> str:
    home = folder or find_program_folder(
        file.folder, mac_folder=file.mac_folder, windows_folder=file.windows_folder, variable=file.variable
    )
    other = home / file.other_name
    return str((other if file.other_name and other.exists() else home / file.name).absolute())


def _plan_change(file: ClientFile, connection: ServerConnection, folder: Path | None) -> FileChange:
    path = _find_path(file, folder)
    before = read_content(path)
    try:
        text = "" if before is None else before.decode()
    except UnicodeDecodeError:
        raise StartupError(f"{path} is not UTF-8 text.") from None
    return FileChange(path, before, edit_text(file, connection, text).encode())


def _show_and_confirm(changes: list[FileChange], yes: bool, secret: str = "") -> None:
    for change in changes:
        click.echo(change.render(secret).translate(CONTROL_CHARACTERS), nl=False)
    if not yes:
        click.confirm("Write this?", abort=True, err=True)


def _undo(setup: ClientSetup, log: ChangeLog, yes: bool) -> None:
    if log.latest is None:
        raise StartupError(f"There is nothing to undo: no file of {setup.title} was changed by this command.")
    current = {change.path: read_content(change.path) for change in log.latest.changes}
    if yes and (changed := [change.path for change in log.latest.changes if current[change.path] != change.after]):
        raise StartupError(f"{', '.join(changed)} changed since. Without --yes, the difference is shown first.")
    changes = [FileChange(change.path, current[change.path], change.before) for change in log.latest.changes]
    _show_and_confirm(changes, yes)
    log.revert(changes)
    click.echo(f"The files of {setup.title} are as they were.", err=True)


def _list_hints(setup: ClientSetup, connection: ServerConnection) -> list[str]:
    hints = [setup.hint] if setup.hint else []
    if connection.key and setup.reads_key:
        hints.append(f"It reads the key from {KEY_VARIABLE}: export it where you start {setup.title}.")
    if connection.models[0].context_length is None:
        hints.append(f"The context window of {connection.model} is not known to the server; check the files.")
    return hints


def _check(setup: ClientSetup, connection: ServerConnection) -> None:
    """Ask a question through the client. Raises RequestFailed unless it answers."""
    if not setup.question:
        raise StartupError(f"{setup.title} has no command for one question: start it, and ask it something.")
    program = shutil.which(setup.question[0])
    if program is None:
        raise StartupError(f"{setup.title} is not installed: there is no `{setup.question[0]}` in PATH.")
    arguments = [argument.format(model=connection.model) for argument in setup.question[1:]]
    click.echo(f"Asking: {QUESTION}", err=True)
    variables = {"NO_COLOR": "1", **({KEY_VARIABLE: connection.key} if connection.key else {})}
    with tempfile.TemporaryDirectory() as folder:
        status, output, errors = _run([program, *arguments, QUESTION], folder, make_environment(**variables))
    if status or not output.strip():
        shown = (errors or output)[-_MAX_SHOWN:].translate(CONTROL_CHARACTERS).strip()
        raise RequestFailed(f"{setup.title} did not answer (exit code {status}).\n{shown}")
    click.echo(output[-_MAX_SHOWN:].translate(CONTROL_CHARACTERS).strip())


def _kill(process: "subprocess.Popen[str]") -> None:
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.terminate()  # Windows, where it is the same


def _run(command: list[str], folder: str, environment: dict[str, str]) -> tuple[int, str, str]:
    """Run a command in a process group of its own, which is killed at the end: some clients ignore SIGTERM."""
    with subprocess.Popen(
        command, cwd=folder, env=environment, start_new_session=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", errors="replace",
    ) as process:  # fmt: skip
        try:
            output, errors = process.communicate(timeout=CHECK_SECONDS)
        except subprocess.TimeoutExpired:
            raise RequestFailed(
                f"{command[0]} did not end within {CHECK_SECONDS:.0f} seconds. The model may be too slow for the long "
                "prompts of a coding agent: `antiphon bench` measures it."
            ) from None
        finally:
            with suppress(ProcessLookupError):
                _kill(process)
    return process.returncode, output, errors
