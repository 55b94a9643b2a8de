"""The command: parses the options, runs the measurement and prints a table, also of an interrupted run."""

import sys
from typing import IO, Any

import click
import msgspec

from antiphon.cli.bench.plan import DEFAULT_PROMPT, MAX_REQUESTS, BenchPlan, make_levels
from antiphon.cli.options import SettingsCommand, settings_by_name
from antiphon.config import Config
from antiphon.errors import StartupError

FAILED = 1
INTERRUPTED = 130  # the shell's exit code for SIGINT
DEFAULT_SECONDS = 10.0
DEFAULT_ROUNDS = 3
MAX_CONCURRENCY = 10_000
MAX_PROMPT_TOKENS = 1_000_000

BENCH = """Measure the speed of a server. Its figures are the time to first token, the time between tokens, and
the throughput.

URL is any OpenAI-compatible server with the Responses API or chat completions. Several servers are measured in turns
and shown side by side. Default: the server of the settings.

\b
  antiphon bench                                              the server at http://127.0.0.1:8000
  antiphon bench http://127.0.0.1:8000 --concurrency 1,8,32   at three levels of load
  antiphon bench http://127.0.0.1:8001 http://127.0.0.1:8000  an engine, and Antiphon in front
  antiphon bench https://ai.example --key "$KEY" --rate 5     five new requests per second
"""


class NumberList(click.ParamType[Any]):
    """A comma-separated list of numbers, such as 1,8,32."""

    name = "number"

    def __init__(self, number: click.ParamType[Any]) -> None:
        self._number = number

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return [self._number.convert(piece, param, ctx) for piece in str(value).split(",")]


def _parse_extra(_: click.Context, option: click.Parameter, text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise click.BadParameter(f"expected a JSON object ({error}).", param=option)


@click.command(cls=SettingsCommand, rows=settings_by_name("config"), help=BENCH)
@click.argument("urls", metavar="[URL]…", nargs=-1)
@click.option(
    "--api", type=click.Choice(["auto", "responses", "chat"]), default="auto",
    help="API to use.  [auto: responses if all servers support it, else chat]",
)  # fmt: skip
@click.option(
    "--concurrency", metavar="N,…", type=NumberList(click.IntRange(1, MAX_CONCURRENCY)),
    help="Concurrent requests; one measurement per value.  [1]",
)  # fmt: skip
@click.option(
    "--rate", metavar="NUMBER,…", type=NumberList(click.FloatRange(0.001, 100_000)),
    help="New requests per second, regardless of pending ones; --concurrency limits them.  [none]",
)  # fmt: skip
@click.option(
    "--requests", metavar="N", type=click.IntRange(1, MAX_REQUESTS),
    help="Number of requests per server and level.  [as many as fit into --duration]",
)  # fmt: skip
@click.option(
    "--duration", "seconds", metavar="SECONDS", type=click.FloatRange(0.1, 86_400),
    help="Seconds per server and level during which requests are started; pending ones are awaited."
    "  [10, unless --requests is set]",
)  # fmt: skip
@click.option(
    "--rounds", metavar="N", type=click.IntRange(1, 1000), default=DEFAULT_ROUNDS,
    help="Rounds per level in which several servers take turns.  [3]",
)  # fmt: skip
@click.option(
    "--warmup", metavar="N", type=click.IntRange(0, MAX_CONCURRENCY),
    help="Short unmeasured requests before each round.  [the concurrency]",
)  # fmt: skip
@click.option("--model", metavar="NAME", help="Model to request.  [the first model that the server lists]")
@click.option("--prompt", metavar="TEXT", default=DEFAULT_PROMPT, help=f"Prompt of the requests.  [{DEFAULT_PROMPT}]")
@click.option(
    "--prompt-tokens", metavar="N", type=click.IntRange(1, MAX_PROMPT_TOKENS),
    help="Approximate length of generated prompts in tokens; each prompt is different.",
)  # fmt: skip
@click.option(
    "--max-tokens", metavar="N", type=click.IntRange(1, 1_000_000), default=128, help="Output token limit.  [128]"
)  # fmt: skip
@click.option(
    "--timeout", metavar="SECONDS", type=click.FloatRange(0.1, 86_400), default=300.0,
    help="Time limit of one request in seconds.  [300]",
)  # fmt: skip
@click.option(
    "--extra", metavar="JSON", callback=_parse_extra, default="{}",
    help="Additional fields of every request body; null removes a field.",
)  # fmt: skip
@click.option(
    "--key", metavar="KEY", multiple=True,
    help="API key: one for all servers, or one per server in order.  [the API key of the settings]",
)  # fmt: skip
@click.option(
    "--json", "file", metavar="FILE", type=click.File("wb"),
    help="Also write all figures as JSON to FILE; - writes them to stdout instead of the table.",
)  # fmt: skip
def bench(
    config: Config, urls: tuple[str, ...], api: str, key: tuple[str, ...], file: IO[bytes] | None, **options: Any
) -> None:
    from antiphon.cli.bench.load import run_benchmark  # imported here, for fast startup of other commands
    from antiphon.cli.bench.table import render_table

    targets = urls or (config.server_url,)
    keys = _assign_keys(targets, key, config)
    figures, interrupted = run_benchmark(
        _make_plan(len(targets), **options), api, list(zip(targets, keys, strict=True))
    )
    if interrupted:
        click.echo("Interrupted: partial results." if figures else "Interrupted.", err=True)
    if figures and file is not sys.stdout.buffer:
        click.echo(render_table(figures))
    if file is not None:
        file.write(msgspec.json.format(msgspec.json.encode({"interrupted": interrupted, "figures": figures})) + b"\n")
    sys.exit(INTERRUPTED if interrupted else FAILED if any(result.failed for result in figures) else 0)


def _make_plan(
    servers: int,
    concurrency: list[int] | None,
    rate: list[float] | None,
    rounds: int,
    seconds: float | None,
    **options: Any,
) -> BenchPlan:
    requests = options["requests"]
    return BenchPlan(
        levels=make_levels(concurrency or [], rate or []),
        seconds=DEFAULT_SECONDS if requests is None and seconds is None else seconds,
        rounds=min(rounds, requests or rounds) if servers > 1 else 1,
        **options,
    )


def _assign_keys(targets: tuple[str, ...], keys: tuple[str, ...], config: Config) -> list[str | None]:
    values = keys or config.server.api_key[:1]
    if not all("!" <= character <= "~" for value in values for character in value):
        raise StartupError("A key has characters that are invalid in a header.")
    if len(values) <= 1:
        return [values[0] if values else None] * len(targets)
    if len(values) != len(targets):
        raise StartupError(
            f"There are {len(targets)} servers and {len(values)} keys: use one key for all, or one per server."
        )
    return [*values]
