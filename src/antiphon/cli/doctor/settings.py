"""Checks of the settings: whether they are valid and consistent, and whether named files, extras and keys exist.

The key check warns if the server is reachable from other machines without keys.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from time import time

from antiphon.cli.doctor.engines import EMBEDDED
from antiphon.cli.doctor.findings import Finding, ok, warning, wrong
from antiphon.cli.terminal import join_names
from antiphon.config import Config
from antiphon.config.engines import EngineSpec
from antiphon.config.key_settings import load_configured_keys, read_reasoning_keys
from antiphon.config.settings import settings
from antiphon.config.sources import SettingsSurvey
from antiphon.egress import EgressPolicy
from antiphon.engines.embedded.known_models import HubModel
from antiphon.engines.embedded.model_files import is_fetched, parse_sources
from antiphon.engines.factory import build_member_specs
from antiphon.errors import AntiphonError, StartupError
from antiphon.service.model_io.models import make_naming
from antiphon.service.operations.reload import check_output_formats
from antiphon.service.planning.prompt_library import PromptLibrary
from antiphon.stores.registry import make_store, parse_location
from antiphon.transport.process import supervisor

_MAX_SETTINGS = 12
_MIN_KEY_LENGTH = 16
_OTHER_USERS_MODE = 0o007  # permission bits for other users
_CREATED_ON_DEMAND = {"cache_dir"}  # folders that the server creates

# extra → a package that it installs
EXTRA_PACKAGES = {
    "postgres": "asyncpg",
    "redis": "redis",
    "s3": "obstore",
    "mcp": "mcp",
    "web": "trafilatura",
    "files": "pypdf",
    "lark": "llguidance",
    "numpy": "numpy",
    "openvino": "openvino_genai",
    "harmony": "openai_harmony",
    "hub": "huggingface_hub",
    "tracing": "opentelemetry.sdk",
}


def check_sources(survey: SettingsSurvey) -> list[Finding]:
    """Report the settings and their sources, or every invalid setting."""
    if survey.problems:
        remedy = "Correct it at that source; see `antiphon serve --help`."
        return [wrong(problem, remedy) for problem in survey.problems]
    if not survey.origins:
        return [ok("No setting is set: all defaults apply.")]
    deprecated = [warning(sentence) for sentence in survey.deprecations]
    names = [f"{name} ({origin})" if origin != name else name for name, origin in sorted(survey.origins.items())]
    return [ok(f"{len(names)} set: {join_names(names, _MAX_SETTINGS)}."), *deprecated]


def check_consistency(config: Config) -> Iterator[Finding]:
    """Report settings that prevent the start or contradict each other."""
    errors = [wrong(message) for message in _find_startup_errors(config)]
    yield from [*errors, *_find_doubtful(config)] or [ok("The settings are consistent.")]


def _find_startup_errors(config: Config) -> Iterable[str]:
    """Run each validation of the startup separately and return the distinct error messages."""
    steps: list[Callable[[], object]] = [
        lambda: build_member_specs(config),
        lambda: config.tools.mcp_servers,
        lambda: config.tools.tool_server_specs,
        lambda: make_naming(config),
        lambda: check_output_formats(config),
        lambda: read_reasoning_keys(config.inference.reasoning_key),
        lambda: parse_location(config.storage.store_location),
        lambda: EgressPolicy(config.tools.allow_egress),
        lambda: config.observability.traces_url,
        lambda: supervisor.check_config(config) if config.server.workers > 1 else None,
    ]
    if (folder := config.compatibility.prompt_dir) is not None and folder.exists():
        steps.append(lambda: PromptLibrary(folder))
    messages: dict[str, None] = {}
    for step in steps:
        try:
            step()
        except StartupError as error:
            messages[str(error)] = None
    return messages


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


def check_files(config: Config) -> Iterator[Finding]:
    """Check that all files named in the settings are readable."""
    paths = [*_iter_paths(config)]
    findings = [finding for name, path in paths for finding in _check_readable(name, path)]
    yield from findings or [ok(f"{len(paths)} configured, all readable." if paths else "None configured.")]


def _iter_paths(config: Config) -> Iterator[tuple[str, Path]]:
    for row in settings().values():
        if isinstance(value := config.get(row.name), Path) and row.name not in _CREATED_ON_DEMAND:
            yield row.flag, value
    for spec in config.inference.engines:
        if spec.ca is not None:
            yield f"ca of [[engines]] {spec.url}", spec.ca


def _check_readable(name: str, path: Path) -> Iterator[Finding]:
    try:
        if path.is_dir():
            next(path.iterdir(), None)
        else:
            with path.open("rb"):
                pass
    except FileNotFoundError:
        yield wrong(f"{name} names {path}, which does not exist.", "Create it, or choose another path.")
    except OSError as error:
        yield wrong(f"{name} names {path}, which cannot be read: {error.strerror}.", "Give this user read permission.")


def check_extras(config: Config) -> Iterator[Finding]:
    """Check that the extras which the settings need are installed."""
    installed = {extra for extra, package in EXTRA_PACKAGES.items() if _is_installed(package)}
    missing = {extra: reason for extra, reason in _find_needed_extras(config).items() if extra not in installed}
    for extra, reason in missing.items():
        yield wrong(f"{reason} requires the extra {extra}, which is not installed.", f"pip install 'antiphon[{extra}]'")
    if not missing:
        unused = ", ".join(sorted(EXTRA_PACKAGES.keys() - installed))
        note = f"; not installed, and not needed by these settings: {unused}" if unused else ""
        yield ok(f"Installed: {', '.join(sorted(installed)) or 'none'}{note}.")


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def _find_needed_extras(config: Config) -> dict[str, str]:
    store, tracing = config.storage.store_location.lower(), config.observability
    reasons = [
        ("postgres", "--store", store.startswith(("postgres://", "postgresql://"))),
        ("redis", "--live", config.storage.live is not None),
        ("s3", "--files", (config.storage.files or "").startswith("s3://")),
        ("mcp", "An MCP server", bool(config.tools.mcp or config.tools.mcp_server)),
        ("mcp", "--tool-server", bool(config.tools.tool_servers or config.tools.tool_server)),
        ("openvino", "--engine openvino", any(spec.kind == "openvino" for spec in config.inference.specs)),
        ("hub", "A model that begins with hf:", any(_needs_hub(spec, config) for spec in config.inference.specs)),
        ("web", "--web-search-url", config.web_search.url is not None),
        ("harmony", "--harmony", config.inference.harmony or any(spec.harmony for spec in config.inference.engines)),
        ("tracing", "--otlp-endpoint", tracing.otlp_endpoint is not None or tracing.otlp_traces_endpoint is not None),
    ]
    return {extra: reason for extra, reason, is_needed in reasons if is_needed}


def _needs_hub(spec: EngineSpec, config: Config) -> bool:
    """Return whether a model has to be downloaded from the hub."""
    sources = () if spec.kind not in EMBEDDED else parse_sources(spec.models)
    files = [source.file for source in sources if isinstance(source.file, HubModel)]
    return not all(is_fetched(file, config.inference.cache_dir) for file in files)


async def check_keys(config: Config) -> AsyncIterator[Finding]:
    configured = load_configured_keys(config)
    stored, is_complete = await _count_stored_keys(config)
    yield _assess_keys(config, len(configured), stored, is_complete)
    if any(len(key.key) < _MIN_KEY_LENGTH for key in configured):
        remedy = "Create one with: openssl rand -hex 24"
        yield warning(f"A key has fewer than {_MIN_KEY_LENGTH} characters and may be guessed.", remedy)
    file = config.server.api_key_file
    if file is not None and file.stat().st_mode & _OTHER_USERS_MODE:
        yield warning(f"All users of this machine can read {file}.", f"chmod o= {file}")


def _assess_keys(config: Config, configured: int, stored: int, is_complete: bool) -> Finding:
    """Assess the number of keys. `is_complete`: the store could be read."""
    if configured or stored:
        return ok(f"{configured} in the settings, {stored} in the store: every client needs one.")
    if config.server.on_loopback:
        return ok("None: all users of this machine have access, other machines cannot connect.")
    unknown_note = "" if is_complete else ", and the keys of the store could not be read"
    return wrong(
        f"No key is set{unknown_note}, but {config.server.host} is reachable from other machines.",
        "Create a key with `antiphon keys create`, set one with --api-key, or listen on 127.0.0.1.",
    )


async def _count_stored_keys(config: Config) -> tuple[int, bool]:
    """Return the number of valid keys in the store, and whether it could be read: only a current schema is opened."""
    try:
        if parse_location(config.storage.store_location)[0] == "memory":
            return 0, True
        store = make_store(config.storage.store_location, config.storage.store_ttl)
        schema = await store.schema()
        if schema.current == 0:
            return 0, True
        if schema.pending or schema.current > schema.newest:
            return 0, False
        try:
            await store.open()
            rows = await store.api_keys()
        finally:
            await store.close()
    except (AntiphonError, StartupError, OSError):  # reported by the check of the store
        return 0, False
    now = time()
    return sum(row.revoked is None and (row.expires is None or row.expires > now) for row in rows), True
