"""The command itself: options in, a table out. Whatever interrupts it, what was measured by then is told."""

import sys
from collections.abc import Callable
from typing import IO, Any

import click
import msgspec

from antiphon.cli.bench.plan import DEFAULT_PROMPT, MOST_REQUESTS, Plan, levels
from antiphon.cli.options import SettingsCommand, named
from antiphon.config import Config
from antiphon.errors import StartupError

FAILED = 1
INTERRUPTED = 130  # as a shell says it of SIGINT
DEFAULT_SECONDS = 10.0
DEFAULT_ROUNDS = 3
MOST_AT_ONCE = 10_000
MOST_PROMPT_TOKENS = 1_000_000

BENCH = """Measure how fast a server answers: time to first token, time between tokens, throughput.

URL is any OpenAI-compatible server, over the Responses API or chat completions; several are measured in turns and shown
side by side. Without one it is the server of the settings.

\b
  antiphon bench                                              the server at http://127.0.0.1:8000
  antiphon bench http://127.0.0.1:8000 --concurrency 1,8,32   at three levels of load
  antiphon bench http://127.0.0.1:8001 http://127.0.0.1:8000  an engine, and Antiphon before it
  antiphon bench https://ai.example --key "$KEY" --rate 5     five requests a second, answered or not
"""


Number = type[int] | type[float]


def _numbers(kind: Number, least: float, most: float) -> Callable[..., list[Any]]:
    """Reads 1,8,32."""

    def read(_: click.Context, option: click.Parameter, text: str | None) -> list[Any]:
        try:
            values = [kind(piece) for piece in text.split(",")] if text else []
        except ValueError:
            raise click.BadParameter(f"{text!r} is not a number, nor several with commas between them.", param=option)
        if not all(least <= value <= most for value in values):
            raise click.BadParameter(f"expected from {least:g} to {most:g}.", param=option)
        return values

    return read


def _number(kind: Number, least: float, most: float) -> Callable[..., Any]:
    numbers = _numbers(kind, least, most)

    def read(context: click.Context, option: click.Parameter, text: str | None) -> Any:
        found = numbers(context, option, text)
        if len(found) > 1:
            raise click.BadParameter("expected one number.", param=option)
        return found[0] if found else None

    return read


def _extra(_: click.Context, option: click.Parameter, text: str | None) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise click.BadParameter(f"expected a JSON object ({error}).", param=option)


@click.command(cls=SettingsCommand, rows=named("config"), help=BENCH)
@click.argument("urls", metavar="[URL]…", nargs=-1)
@click.option(
    "--api", type=click.Choice(["auto", "responses", "chat"]), default="auto",
    help="API to ask over.  [auto: responses where all have it, else chat]",
)  # fmt: skip
@click.option(
    "--concurrency",
    metavar="N,…",
    callback=_numbers(int, 1, MOST_AT_ONCE),
    help="Requests at once; one level each.  [1]",
)
@click.option(
    "--rate", metavar="NUMBER,…", callback=_numbers(float, 0.001, 100_000),
    help="Requests begun in a second, however long they take; --concurrency is then the most at once.  [none]",
)  # fmt: skip
@click.option(
    "--requests", metavar="N", callback=_number(int, 1, MOST_REQUESTS),
    help="Requests to each server at each level.  [as many as fit into --duration]",
)  # fmt: skip
@click.option(
    "--duration", metavar="SECONDS", callback=_number(float, 0.1, 86_400),
    help="Seconds in which requests to a server are begun at each level; those under way are awaited."
    "  [10, unless --requests is given]",
)  # fmt: skip
@click.option(
    "--rounds", metavar="N", callback=_number(int, 1, 1000),
    help="Rounds that a level is cut into, if there are several servers: they take turns.  [3]",
)  # fmt: skip
@click.option(
    "--warmup", metavar="N", callback=_number(int, 0, MOST_AT_ONCE),
    help="Short requests before each round, not measured.  [as many as at once]",
)  # fmt: skip
@click.option("--model", metavar="NAME", help="Model to ask.  [the first one that a server lists]")
@click.option("--prompt", metavar="TEXT", default=DEFAULT_PROMPT, help=f"What to ask.  [{DEFAULT_PROMPT}]")
@click.option(
    "--prompt-tokens", metavar="N", callback=_number(int, 1, MOST_PROMPT_TOKENS),
    help="Ask with about so many tokens instead, every time with others.",
)  # fmt: skip
@click.option(
    "--max-tokens", metavar="N", callback=_number(int, 1, 1_000_000), default="128", help="Tokens of an answer.  [128]"
)
@click.option(
    "--timeout", metavar="SECONDS", callback=_number(float, 0.1, 86_400), default="300",
    help="Seconds that one answer may take.  [300]",
)  # fmt: skip
@click.option(
    "--extra", metavar="JSON", callback=_extra, help="Fields for the body of every request; null leaves one out."
)
@click.option(
    "--key", metavar="KEY", multiple=True,
    help="Key for the servers: one for all, or one for each in their order.  [the API key of the settings]",
)  # fmt: skip
@click.option(
    "--json", "file", metavar="FILE", type=click.File("wb"),
    help="Write all figures as JSON, too; - is stdout, then without the table.",
)  # fmt: skip
def bench(
    config: Config, urls: tuple[str, ...], api: str, key: tuple[str, ...], file: IO[bytes] | None, **asked: Any
) -> None:
    from antiphon.cli.bench.figures import table
    from antiphon.cli.bench.load import perform  # here alone: other commands need not wait for its imports

    places = urls or (config.server_url,)
    keys = _keys(places, key, config)
    figures, interrupted = perform(_plan(len(places), asked), api, list(zip(places, keys, strict=True)))
    if interrupted:
        click.echo("Interrupted: this is what there is." if figures else "Interrupted.", err=True)
    if figures and file is not sys.stdout.buffer:
        click.echo(table(figures))
    if file is not None:
        file.write(msgspec.json.format(msgspec.json.encode({"interrupted": interrupted, "figures": figures})) + b"\n")
    sys.exit(INTERRUPTED if interrupted else FAILED if any(one.failed for one in figures) else 0)


def _plan(servers: int, asked: dict[str, Any]) -> Plan:
    requests, seconds = asked["requests"], asked["duration"]
    if requests is None and seconds is None:
        seconds = DEFAULT_SECONDS
    rounds = asked["rounds"] or DEFAULT_ROUNDS
    return Plan(
        levels=levels(asked["concurrency"], asked["rate"]),
        requests=requests,
        seconds=seconds,
        rounds=min(rounds, requests or rounds) if servers > 1 else 1,
        **{
            name: asked[name]
            for name in ("warmup", "model", "prompt", "prompt_tokens", "max_tokens", "timeout", "extra")
        },
    )


def _keys(places: tuple[str, ...], keys: tuple[str, ...], config: Config) -> list[str | None]:
    """One for each server."""
    given = keys or config.api_key[:1]
    if not all("!" <= character <= "~" for one in given for character in one):
        raise StartupError("A key has characters that cannot stand in a header.")
    if len(given) <= 1:
        return [given[0] if given else None] * len(places)
    if len(given) != len(places):
        raise StartupError(f"There are {len(places)} servers and {len(given)} keys: give one for all, or one for each.")
    return [*given]
