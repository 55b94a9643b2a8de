"""The commands. A StartupError or RequestFailed is printed as one sentence with an exit code, never as a traceback."""

import gc
import io
import sys
from functools import partial
from importlib import import_module

import click

from antiphon.cli.options import RELOAD_KEY, SettingsCommand, settings_by_name, settings_in_groups
from antiphon.cli.terminal import ProgressBar, print_banner
from antiphon.config import Config
from antiphon.config.settings import CLIENT, settings
from antiphon.errors import RequestFailed, StartupError
from antiphon.version import VERSION

UNANSWERED = 1
NOT_STARTED = 2  # also click's exit code for an invalid command line

TOP = """Antiphon: the complete OpenAI Responses API for any language model.

\b
  antiphon serve                    serve a small built-in model at http://127.0.0.1:8000
  antiphon chat                     chat with it, in another terminal
"""

SERVE = """Serve a model over HTTP.

MODEL is a GGUF file, hf:ORG/REPO[:QUANT] for one of the Hugging Face Hub, or the name of a known model (`antiphon
models --known`). Default: a small built-in model, downloaded once (98 MB).

\b
  antiphon serve                              the built-in model
  antiphon serve ./model.gguf                 your own model
  antiphon serve qwen2.5-coder-1.5b-instruct  a model that calls tools, downloaded once (1.1 GB)
  antiphon serve hf:ORG/REPO:Q4_K_M           a model of the Hugging Face Hub
  antiphon serve vision.gguf+mmproj.gguf      a model for images, and its projector
  antiphon serve big=./big.gguf --model small=./small.gguf
  antiphon serve --engine vllm://gpu-1:8000 --engine vllm://gpu-2:8000
  antiphon serve --discover                   the engines that run on this machine
  antiphon serve --engine fake                no model, for tests and demos
  antiphon serve --host 0.0.0.0 --api-key "$KEY"
  antiphon serve --host 0.0.0.0               after `antiphon keys create`

\b
Send a request:
  curl http://127.0.0.1:8000/v1/responses -H 'content-type: application/json' \\
    -d '{"model": "NAME", "input": "Hello!"}'     (`antiphon models` lists the names)
"""

CHAT = """Chat with a running server in the terminal.

\b
  antiphon chat                     interactive; /help lists the commands
  antiphon chat "Why is the sky blue?"
  antiphon chat < questions.txt     one question per line, answers to stdout
"""

# Modules of commands that import more than others need; each contains the command under its name.
LAZY_COMMANDS = {
    "bench": "antiphon.cli.bench.command",
    "connect": "antiphon.cli.connect",
    "db": "antiphon.cli.db",
    "doctor": "antiphon.cli.doctor.command",
    "keys": "antiphon.cli.keys",
    "models": "antiphon.cli.models",
    "ps": "antiphon.cli.models",
    "pull": "antiphon.cli.models",
    "rm": "antiphon.cli.models",
    "sandbox-packages": "antiphon.cli.sandbox_packages",
    "sandbox-worker": "antiphon.cli.sandbox_worker",
}


class LazyGroup(click.Group):
    """Imports a lazy command when it is used, or described by `--help`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *LAZY_COMMANDS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in LAZY_COMMANDS:
            return super().get_command(ctx, cmd_name)
        command = getattr(import_module(LAZY_COMMANDS[cmd_name]), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command


def main() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):  # a pipe of Windows has few characters: escape the others, as stderr
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        cli(prog_name="antiphon")
    except StartupError as error:
        click.echo(f"antiphon: {error}", err=True)
        sys.exit(NOT_STARTED)
    except RequestFailed as error:
        click.echo(f"antiphon: {error}", err=True)
        sys.exit(UNANSWERED)


@click.group(
    cls=LazyGroup, help=TOP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(VERSION, "--version", message="antiphon %(version)s")
def cli() -> None:
    pass


@cli.command(cls=SettingsCommand, rows=[row for row in settings().values() if row.group != CLIENT], help=SERVE)
@click.argument("first_model", metavar="[MODEL]", required=False)
def serve(config: Config) -> None:
    gc.disable()  # imports leave no garbage, and searching for it would take a tenth of the time to start
    from antiphon import wiring  # imported here: `antiphon chat` must not wait for the server's imports
    from antiphon.engines.discovery import identify_engines
    from antiphon.observe import set_up_logging

    gc.freeze()
    gc.enable()
    load_again = click.get_current_context().meta[RELOAD_KEY]
    set_up_logging(config.observability.log_format, config.observability.log_level)
    config = identify_engines(config)
    wiring.serve(config, partial(print_banner, config), ProgressBar(), lambda: identify_engines(load_again()))


@cli.command(cls=SettingsCommand, rows=[*settings_in_groups(CLIENT), *settings_by_name("api_key", "config")], help=CHAT)
@click.argument("question", required=False)
@click.option("--model", metavar="NAME", help="Model to use.  [the first model of the server]")
@click.option("--instructions", metavar="TEXT", help="System instructions for the model.")
@click.option("--effort", metavar="LEVEL", help="Reasoning effort, for models that support it: low, medium, high …")
def chat(config: Config, question: str | None, model: str | None, instructions: str | None, effort: str | None) -> None:
    from antiphon.cli.chat import ChatSession  # imported on demand, see serve
    from antiphon.cli.client import make_client

    client = make_client(config)
    name = model or next(iter(client.run(client.list_models())), "default")
    optional_fields = {"instructions": instructions, "reasoning": effort and {"effort": effort}}
    session = ChatSession(
        client, {"model": name, **{field: value for field, value in optional_fields.items() if value}}
    )
    if question is not None:
        session.send(question)
    else:
        if sys.stdin.isatty():
            click.secho(f"Connected to {name} at {client.url}. /help lists the commands, Ctrl-D exits.", dim=True)
        session.run()
    sys.exit(0 if session.succeeded else UNANSWERED)


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(f"antiphon {VERSION}")
