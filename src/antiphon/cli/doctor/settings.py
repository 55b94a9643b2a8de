"""Checks of the settings: whether they are valid and consistent, and whether named files and extras exist."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from msgspec import inspect

from antiphon.cli.doctor.findings import Finding, join_names, ok, warning, wrong
from antiphon.config import Config
from antiphon.config.areas import traces_url
from antiphon.config.key_settings import read_reasoning_keys
from antiphon.config.settings import settings
from antiphon.config.sources import SettingsSurvey
from antiphon.egress import EgressPolicy
from antiphon.engines.factory import build_member_specs
from antiphon.errors import StartupError
from antiphon.service.model_io.model_naming import make_naming
from antiphon.service.operations.reload import check_output_formats
from antiphon.service.planning.prompt_library import PromptLibrary
from antiphon.stores.registry import parse_location
from antiphon.transport.process import supervisor

_MAX_SETTINGS = 12
_CREATED_ON_DEMAND = {"cache_dir"}  # folders that the server creates

# extra → a package that it installs
EXTRA_PACKAGES = {
    "postgres": "asyncpg",
    "redis": "redis",
    "mcp": "mcp",
    "web": "trafilatura",
    "files": "pypdf",
    "lark": "llguidance",
    "harmony": "openai_harmony",
    "tracing": "opentelemetry.sdk",
}


def check_sources(survey: SettingsSurvey) -> list[Finding]:
    """Report the settings and their sources, or every invalid setting."""
    if survey.problems:
        return [
            wrong(problem, "Correct it at that source; see `antiphon serve --help`.") for problem in survey.problems
        ]
    if not survey.origins:
        return [ok("No setting is set: all defaults apply.")]
    names = [f"{name} ({origin})" if origin != name else name for name, origin in sorted(survey.origins.items())]
    return [ok(f"{len(names)} set: {join_names(names, _MAX_SETTINGS)}.")]


async def check_consistency(config: Config) -> list[Finding]:
    """Report settings that prevent the start or contradict each other."""
    findings = [*_find_startup_errors(config), *_find_doubtful(config)]
    return findings or [ok("The settings are consistent.")]


def _find_startup_errors(config: Config) -> Iterator[Finding]:
    """Run each validation of the startup separately and report its error."""
    steps: list[Callable[[], object]] = [
        lambda: build_member_specs(config),
        lambda: config.tools.mcp_servers,
        lambda: make_naming(config),
        lambda: check_output_formats(config),
        lambda: read_reasoning_keys(config.inference.reasoning_key),
        lambda: parse_location(config.storage.store_location),
        lambda: EgressPolicy(config.tools.allow_egress),
        lambda: traces_url(config.observability.otlp_endpoint, config.observability.otlp_traces_endpoint),
        lambda: (
            PromptLibrary(folder)
            if (folder := config.compatibility.prompt_dir) is not None and folder.exists()
            else None
        ),
        lambda: supervisor.check_config(config) if config.server.workers > 1 else None,
    ]
    for message in dict.fromkeys(filter(None, map(_try_step, steps))):
        yield wrong(message)


def _try_step(step: Callable[[], object]) -> str:
    """Return the error message of a step, or an empty text."""
    try:
        step()
    except StartupError as error:
        return str(error)
    return ""


def _find_doubtful(config: Config) -> Iterator[Finding]:
    default, limit = config.inference.default_output_tokens, config.inference.max_output_tokens
    if default is not None and limit is not None and default > limit:
        yield warning("default_output_tokens exceeds max_output_tokens and is lowered to it.", "Lower it.")
    if config.storage.disable_store and config.storage.store is not None:
        yield warning("--store is set, but the store is disabled.", "Remove --store or --disable-store.")
    if config.storage.live is not None and parse_location(config.storage.store_location)[0] == "memory":
        yield warning(
            "--live connects several servers, but a store in memory cannot be shared between them.",
            "Use a shared store: --store postgresql://….",
        )
    if config.server.websocket_warning >= config.server.websocket_lifetime:
        yield warning("--websocket-warning is not shorter than --websocket-lifetime.", "Lower --websocket-warning.")
    per_key = config.server.max_websocket_connections_per_key
    if per_key is not None and per_key > config.server.max_websocket_connections:
        yield warning(
            "The limit of WebSockets per key exceeds the total limit.",
            "Raise --max-websocket-connections to at least that number.",
        )


async def check_files(config: Config) -> list[Finding]:
    """Check that all files named in the settings are readable."""
    paths = [*_iter_paths(config)]
    findings = [finding for name, path in paths if (finding := _check_readable(name, path)) is not None]
    return findings or [ok(f"{len(paths)} configured, all readable." if paths else "None configured.")]


def _iter_paths(config: Config) -> Iterator[tuple[str, Path]]:
    for row in settings().values():
        kinds = row.kind.types if isinstance(row.kind, inspect.UnionType) else (row.kind,)
        if row.name in _CREATED_ON_DEMAND or not any(isinstance(kind, inspect.CustomType) for kind in kinds):
            continue
        if isinstance(value := config.get(row.name), Path):
            yield row.flag, value
    for spec in config.inference.engines:
        if spec.ca is not None:
            yield f"ca of [[engines]] {spec.url}", spec.ca


def _check_readable(name: str, path: Path) -> Finding | None:
    try:
        if path.is_dir():
            next(path.iterdir(), None)
        else:
            with path.open("rb"):
                pass
    except FileNotFoundError:
        return wrong(f"{name} names {path}, which does not exist.", "Create it, or choose another path.")
    except OSError as error:
        return wrong(f"{name} names {path}, which cannot be read: {error.strerror}.", "Give this user read permission.")
    return None


async def check_extras(config: Config) -> list[Finding]:
    """Check that the extras which the settings need are installed."""
    installed = {extra for extra, package in EXTRA_PACKAGES.items() if _is_installed(package)}
    findings = [
        wrong(f"{reason} requires the extra {extra}, which is not installed.", f"pip install 'antiphon[{extra}]'")
        for extra, reason in _find_needed_extras(config).items()
        if extra not in installed
    ]
    if findings:
        return findings
    unused = sorted(EXTRA_PACKAGES.keys() - installed)
    missing = f"; not installed, and not needed by these settings: {', '.join(unused)}" if unused else ""
    return [ok(f"Installed: {', '.join(sorted(installed)) or 'none'}{missing}.")]


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def _find_needed_extras(config: Config) -> dict[str, str]:
    """Return the needed extras, each with the setting that needs it."""
    needed: dict[str, str] = {}
    if config.storage.store_location.lower().startswith(("postgres://", "postgresql://")):
        needed["postgres"] = "--store"
    if config.storage.live is not None:
        needed["redis"] = "--live"
    if config.tools.mcp or config.tools.mcp_server:
        needed["mcp"] = "An MCP server"
    if config.web_search.url is not None:
        needed["web"] = "--web-search-url"
    if config.inference.harmony or any(spec.harmony for spec in config.inference.engines):
        needed["harmony"] = "--harmony"
    if config.observability.otlp_endpoint is not None or config.observability.otlp_traces_endpoint is not None:
        needed["tracing"] = "--otlp-endpoint"
    return needed
