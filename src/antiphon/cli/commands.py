"""The commands themselves. A StartupError or an Unanswered is one sentence and an exit code, never a traceback."""

import sys
from collections.abc import Iterator
from importlib.metadata import version as installed

import click

from antiphon.cli.banner import Banner
from antiphon.cli.bench.command import bench
from antiphon.cli.chat import Chat
from antiphon.cli.client import Client, Unanswered, Unreachable
from antiphon.cli.db import db
from antiphon.cli.doctor.command import doctor
from antiphon.cli.keys import keys
from antiphon.cli.options import AGAIN, SettingsCommand, in_groups, named
from antiphon.cli.progress import Progress
from antiphon.config import Config
from antiphon.config.help_text import CLIENT
from antiphon.config.sources import settings
from antiphon.errors import StartupError
from antiphon.transport.process.huge_pages import make_room

UNANSWERED = 1
NOT_STARTED = 2  # click's code for a wrong command line too

TOP = """Antiphon: the whole OpenAI Responses API for any language model.

\b
  antiphon serve                    a real model at http://127.0.0.1:8000, nothing else needed
  antiphon chat                     talk to it, in another terminal
"""

SERVE = """Serve a model over HTTP.

MODEL is a GGUF file or the name of a known model; without it, a small built-in one is fetched (98 MB, once).

\b
  antiphon serve                              the built-in model
  antiphon serve ./model.gguf                 a file of yours
  antiphon serve big=./big.gguf --model small=./small.gguf
  antiphon serve --engine vllm://gpu-1:8000 --engine vllm://gpu-2:8000
  antiphon serve --engine fake                no model at all: for tests and demos
  antiphon serve --host 0.0.0.0 --api-key "$KEY"
  antiphon serve --host 0.0.0.0               once `antiphon keys create` has made a key

\b
Then ask it:
  curl http://127.0.0.1:8000/v1/responses -H 'content-type: application/json' \\
    -d '{"model": "NAME", "input": "Hello!"}'     (antiphon models tells the names)
"""

CHAT = """Talk to a running server in the terminal.

\b
  antiphon chat                     a conversation; /help tells more
  antiphon chat "Why is the sky blue?"
  antiphon chat < questions.txt     a question a line, answers to stdout
"""


def main() -> None:
    try:
        cli(prog_name="antiphon")
    except StartupError as error:
        click.echo(f"antiphon: {error}", err=True)
        sys.exit(NOT_STARTED)
    except Unanswered as error:
        click.echo(f"antiphon: {error}", err=True)
        sys.exit(UNANSWERED)


@click.group(help=TOP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(installed("antiphon"), "--version", message="antiphon %(version)s")
def cli() -> None:
    pass


@cli.command(
    cls=SettingsCommand, rows=[row for row in settings().values() if row.note.group != CLIENT.title], help=SERVE
)
@click.argument("first_model", metavar="[MODEL]", required=False)
def serve(config: Config) -> None:
    make_room()
    from antiphon import wiring  # here alone: `antiphon chat` must not wait for a server's imports

    wiring.serve(config, Banner(config), Progress(), click.get_current_context().meta[AGAIN])


@cli.command(cls=SettingsCommand, rows=[*in_groups(CLIENT.title), *named("api_key", "config")], help=CHAT)
@click.argument("question", required=False)
@click.option("--model", metavar="NAME", help="Model to talk to.  [the first one served]")
@click.option("--instructions", metavar="TEXT", help="What the model is told before the conversation.")
@click.option("--effort", metavar="WORD", help="How hard to think, for models that can: low, medium, high …")
def chat(config: Config, question: str | None, model: str | None, instructions: str | None, effort: str | None) -> None:
    client = _client(config)
    name = model or next(iter(client.models()), "default")
    wishes = {"instructions": instructions, "reasoning": effort and {"effort": effort}}
    talk = Chat(client, {"model": name, **{field: wish for field, wish in wishes.items() if wish}})
    if question is not None:
        talk.ask(question)
    else:
        if sys.stdin.isatty():
            click.secho(f"Talking to {name} at {client.url}. /help tells more, Ctrl-D leaves.", dim=True)
        talk.run()
    sys.exit(0 if talk.well else UNANSWERED)


@cli.command(cls=SettingsCommand, rows=[*in_groups(CLIENT.title), *named("api_key", "cache_dir", "config")])
def models(config: Config) -> None:
    """List the models of a running server, or, if none runs, those to be had."""
    try:
        names = _client(config).models()
    except Unreachable:
        if config.url:
            raise
        click.echo(f"No server answers at {config.server_url}; these are the models to be had:", err=True)
        names = [*_known(config)]
    for name in names:
        click.echo(name)


@cli.command(cls=SettingsCommand, rows=named("cache_dir", "config"))
@click.argument("model", required=False)
def pull(config: Config, model: str | None) -> None:
    """Fetch a known model, the built-in one if none is named, and check it; a later start needs no network."""
    from antiphon.engines.llamacpp.model_files import DEFAULT, KNOWN, fetch  # not before it is needed: see serve

    known = KNOWN.get(model or DEFAULT.id)
    if known is None:
        raise StartupError(f"There is no known model {model!r}; expected {' or '.join(KNOWN)}.")
    click.echo(fetch(known, config.cache_dir, Progress(), verify=True))


cli.add_command(db)
cli.add_command(doctor)
cli.add_command(keys)
cli.add_command(bench)


@cli.command()
def version() -> None:
    """Show the version."""
    click.echo(f"antiphon {installed('antiphon')}")


def _client(config: Config) -> Client:
    return Client(config.server_url, config.api_key[0] if config.api_key else None)


def _known(config: Config) -> Iterator[str]:
    from antiphon.engines.llamacpp.model_files import KNOWN, fetched

    here = fetched(config.cache_dir)
    for name in KNOWN:
        yield f"{name}  (fetched)" if name in here else f"{name}  (antiphon pull {name})"
