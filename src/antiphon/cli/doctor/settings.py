"""What can be told from the settings alone: whether they are read, agree with each other, and have what they name."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from msgspec import inspect

from antiphon.cli.doctor.findings import Finding, fine, listed, warning, wrong
from antiphon.config import Config
from antiphon.config.areas.observability import traces_url
from antiphon.config.key_settings import read_keys
from antiphon.config.sources import Survey, settings
from antiphon.egress import Policy
from antiphon.engines.factory import seats
from antiphon.errors import StartupError
from antiphon.service.model_io.models import naming
from antiphon.service.operations.reload import check_reading
from antiphon.service.planning.prompt_library import KeptPrompts
from antiphon.stores.registry import named
from antiphon.transport.process import supervisor

_SHOWN = 12
_MADE = {"cache_dir"}  # a folder that is made when it is needed

# extra → the package that it brings
EXTRAS = {
    "postgres": "asyncpg",
    "redis": "redis",
    "mcp": "mcp",
    "web": "trafilatura",
    "files": "pypdf",
    "lark": "llguidance",
    "harmony": "openai_harmony",
    "tracing": "opentelemetry.sdk",
}


def settings_read(found: Survey) -> list[Finding]:
    """Every setting that is given anywhere was looked at by itself."""
    if found.wrong:
        return [
            wrong(sentence, "Change it where it says; `antiphon serve --help` tells more.") for sentence in found.wrong
        ]
    if not found.places:
        return [fine("No setting is given: everything is as it comes.")]
    given = [f"{name} ({place})" if place != name else name for name, place in sorted(found.places.items())]
    return [fine(f"{len(given)} given and read: {listed(given, _SHOWN)}.")]


async def contradictions(config: Config) -> list[Finding]:
    found = [*_refused(config), *_doubtful(config)]
    return found or [fine("They agree with each other.")]


def _refused(config: Config) -> Iterator[Finding]:
    """Whatever keeps a server from starting, each by itself."""
    steps: list[Callable[[], object]] = [
        lambda: seats(config),
        lambda: config.mcp_servers,
        lambda: naming(config),
        lambda: check_reading(config),
        lambda: read_keys(config.reasoning_key),
        lambda: named(config.store_place),
        lambda: Policy(config.allow_egress),
        lambda: traces_url(config.otlp_endpoint, config.otlp_traces_endpoint),
        lambda: KeptPrompts(folder) if (folder := config.prompt_dir) is not None and folder.exists() else None,
        lambda: supervisor.check(config) if config.workers > 1 else None,
    ]
    for sentence in dict.fromkeys(filter(None, map(_sentence, steps))):
        yield wrong(sentence)


def _sentence(step: Callable[[], object]) -> str:
    try:
        step()
    except StartupError as error:
        return str(error)
    return ""


def _doubtful(config: Config) -> Iterator[Finding]:
    default, most = config.default_output_tokens, config.max_output_tokens
    if default is not None and most is not None and default > most:
        yield warning("default_output_tokens is above max_output_tokens, which it is lowered to.", "Lower it.")
    if config.disable_store and config.store is not None:
        yield warning("A store is named, and disabled.", "Leave out --store, or --disable-store.")
    if config.live is not None and named(config.store_place)[0] == "memory":
        yield warning(
            "--live lets servers follow each other, which with a store in memory know nothing of each other.",
            "Name a store that they share: --store postgresql://….",
        )
    if config.websocket_warning >= config.websocket_lifetime:
        yield warning("A WebSocket is told of its end before it begins.", "Lower --websocket-warning.")
    own = config.max_websocket_connections_per_key
    if own is not None and own > config.max_websocket_connections:
        yield warning(
            "One key may have more WebSockets than all together.", "Raise --max-websocket-connections to as many."
        )


async def files(config: Config) -> list[Finding]:
    """Those that are named are there, and can be read."""
    wanted = [*_paths(config)]
    found = [finding for name, path in wanted if (finding := _readable(name, path)) is not None]
    return found or [fine(f"{len(wanted)} are named, and can be read." if wanted else "None is named.")]


def _paths(config: Config) -> Iterator[tuple[str, Path]]:
    for row in settings().values():
        kinds = row.kind.types if isinstance(row.kind, inspect.UnionType) else (row.kind,)
        if row.name in _MADE or not any(isinstance(kind, inspect.CustomType) for kind in kinds):
            continue
        if isinstance(value := getattr(config, row.name, None), Path):
            yield row.flag, value
    for spec in config.engines:
        if spec.ca is not None:
            yield f"ca of [[engines]] {spec.url}", spec.ca


def _readable(name: str, path: Path) -> Finding | None:
    try:
        if path.is_dir():
            next(path.iterdir(), None)
        else:
            with path.open("rb"):
                pass
    except FileNotFoundError:
        return wrong(f"{name} names {path}, which is not there.", "Make it, or name another one.")
    except OSError as error:
        return wrong(f"{name} names {path}, which cannot be read: {error.strerror}.", "Let this user read it.")
    return None


async def extras(config: Config) -> list[Finding]:
    there = {extra for extra, package in EXTRAS.items() if _is_there(package)}
    found = [
        wrong(f"{why} needs the extra {extra}, which is not installed.", f"pip install 'antiphon[{extra}]'")
        for extra, why in _needed(config).items()
        if extra not in there
    ]
    if found:
        return found
    rest = sorted(EXTRAS.keys() - there)
    missing = f"; not installed, and not needed by these settings: {', '.join(rest)}" if rest else ""
    return [fine(f"Installed: {', '.join(sorted(there)) or 'none'}{missing}.")]


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # not even what it is a part of
        return False


def _needed(config: Config) -> dict[str, str]:
    """By extra, what needs it."""
    needed: dict[str, str] = {}
    if config.store_place.lower().startswith(("postgres://", "postgresql://")):
        needed["postgres"] = "--store"
    if config.live is not None:
        needed["redis"] = "--live"
    if config.mcp or config.mcp_server:
        needed["mcp"] = "An MCP server"
    if config.web_search.url is not None:
        needed["web"] = "--web-search-url"
    if config.harmony or any(spec.harmony for spec in config.engines):
        needed["harmony"] = "--harmony"
    if config.otlp_endpoint is not None or config.otlp_traces_endpoint is not None:
        needed["tracing"] = "--otlp-endpoint"
    return needed
