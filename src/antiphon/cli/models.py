"""The commands for models: those of a running server, those that can be downloaded, and those on this machine."""

from collections.abc import Iterator

import click
from msgspec import Struct
from msgspec.json import Decoder

from antiphon.cli.client import make_client
from antiphon.cli.options import SettingsCommand, settings_by_name, settings_in_groups
from antiphon.cli.terminal import ProgressBar, print_table
from antiphon.config import Config
from antiphon.config.settings import CLIENT
from antiphon.engines.embedded.known_models import DEFAULT_MODEL, KNOWN_MODELS, HubModel, find_model
from antiphon.engines.embedded.model_files import (
    fetch_model,
    find_files,
    format_size,
    list_fetched,
    list_pulled,
    remove_files,
)
from antiphon.errors import ServerUnreachable

PULL = """Download and verify a model. Later starts need no network.

\b
  antiphon pull                                           the built-in model
  antiphon pull qwen2.5-coder-1.5b-instruct               a known model (`antiphon models --known`)
  antiphon pull hf:ORG/REPO                               a GGUF of the Hugging Face Hub: Q4_K_M, Q8_0 or the only one
  antiphon pull hf:ORG/REPO:Q6_K                          this quantisation
  HF_TOKEN=… antiphon pull hf:ORG/REPO                    a private or gated one

An interrupted download is continued. HF_ENDPOINT names another hub.
"""

RM = """Delete the files of a model, after showing them.

\b
  antiphon rm qwen2.5-coder-1.5b-instruct
  antiphon rm hf:ORG/REPO:Q6_K                            this quantisation
  antiphon rm hf:ORG/REPO                                 all that was downloaded of it, also in part

A server that has loaded the model continues to serve it until it restarts.
"""


class _RunningCount(Struct):
    running: int = 0


class _Ability(Struct):
    """The fields of `/v1/capabilities` that `ps` prints."""

    model: str
    engine: str
    context: int | None = None
    loaded: bool | None = None
    members: list[_RunningCount] = []


class _Abilities(Struct):
    data: list[_Ability] = []


_ABILITIES = Decoder(_Abilities)


@click.command(
    cls=SettingsCommand, rows=[*settings_in_groups(CLIENT), *settings_by_name("api_key", "cache_dir", "config")]
)
@click.option("--known", "only_known", is_flag=True, help="List the models that are known by name, with their sizes.")
def models(config: Config, only_known: bool) -> None:
    """List the models of a server. If none runs, list those that can be downloaded."""
    if only_known:
        print_table([*_list_known(config)])
        return
    client = make_client(config)
    try:
        names = client.run(client.list_models())
    except ServerUnreachable:
        if config.url:
            raise
        click.echo(f"No server answers at {config.server_url}; available models:", err=True)
        names = [*_list_available(config)]
    for name in names:
        click.echo(name)


@click.command(cls=SettingsCommand, rows=settings_by_name("cache_dir", "config"), help=PULL)
@click.argument("model", required=False)
def pull(config: Config, model: str | None) -> None:
    source = find_model(model or DEFAULT_MODEL.id)
    click.echo(fetch_model(source, config.inference.cache_dir, ProgressBar(), verify=True))


@click.command(cls=SettingsCommand, rows=[*settings_in_groups(CLIENT), *settings_by_name("api_key", "config")])
def ps(config: Config) -> None:
    """List the models in memory, and those of other engines."""
    client = make_client(config)
    abilities = client.run(client.http.get("/capabilities", _ABILITIES)).data
    rows = [_describe_loaded(ability) for ability in abilities if ability.loaded is not False]
    print_table([("NAME", "ENGINE", "STATE", "CONTEXT", "RUNNING"), *rows])


@click.command(cls=SettingsCommand, rows=settings_by_name("cache_dir", "config"), help=RM)
@click.argument("model")
@click.option("--yes", is_flag=True, help="Do not ask before files are deleted.")
def rm(config: Config, model: str, yes: bool) -> None:
    paths = find_files(find_model(model), config.inference.cache_dir)
    sizes = {path: path.stat().st_size for path in paths}
    for path, size in sizes.items():
        click.echo(f"{path}  {format_size(size)}")
    if not yes:
        click.confirm("Delete this?", abort=True, err=True)
    remove_files(paths)
    click.echo(f"{format_size(sum(sizes.values()))} are free again.", err=True)


def _describe_loaded(ability: _Ability) -> tuple[str, ...]:
    state = "ready" if ability.loaded is None else "loaded"
    running = sum(member.running for member in ability.members)
    return ability.model, ability.engine, state, str(ability.context or "unknown"), str(running)


def _list_available(config: Config) -> Iterator[str]:
    downloaded = list_fetched(config.inference.cache_dir)
    for name in KNOWN_MODELS:
        yield f"{name}  (fetched)" if name in downloaded else f"{name}  (antiphon pull {name})"
    known_hub = {(model.repo, model.variant) for model in KNOWN_MODELS.values() if isinstance(model, HubModel)}
    for pulled in list_pulled(config.inference.cache_dir):
        if (pulled.repo, pulled.quant) not in known_hub:
            yield f"hf:{pulled.repo}:{pulled.quant}  (fetched)"


def _list_known(config: Config) -> Iterator[tuple[str, ...]]:
    downloaded = list_fetched(config.inference.cache_dir)
    yield "NAME", "SIZE", "HERE", "SOURCE", "FOR"
    for name, model in KNOWN_MODELS.items():
        source = model.reference if isinstance(model, HubModel) else f"PyPI {model.package}"
        yield name, format_size(model.bytes), "yes" if name in downloaded else "no", source, model.purpose
