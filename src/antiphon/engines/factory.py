"""Builds engines from the configuration, alone or as a pool.

The settings struct of an engine is filled from Config by name: `rate` of the fake engine is `fake_rate`, `context` is
`context`. Values of one engine's own EngineSpec take precedence. Unset values (None) keep the engine's default.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args, get_type_hints

from antiphon.config import Config
from antiphon.config.engines import EngineSpec
from antiphon.config.settings import settings
from antiphon.core.prompt import ParserChoice
from antiphon.engines.base import Engine, ProgressCallback
from antiphon.engines.discovery import WEB_SCHEMES
from antiphon.engines.pool import EnginePool, MemberSpec
from antiphon.engines.registry import ENGINES
from antiphon.errors import StartupError
from antiphon.plugins import find_plugin, list_names

DEFAULT_REMOTE_SLOTS = 1024  # for a remote engine whose slots are neither reported nor configured


def build_pool(config: Config, progress: ProgressCallback | None = None) -> EnginePool:
    """Build a pool, even of one engine: members may join it later. `progress` is called for downloads and loads."""
    specs = build_member_specs(config, progress)
    return EnginePool(specs, timeout=config.inference.first_token_timeout, grace=config.inference.run_timeout)


def build_member_specs(config: Config, progress: ProgressCallback | None = None) -> list[MemberSpec]:
    """Build one spec per configured engine; raise StartupError for an unknown engine or unsupported settings."""
    return [
        _build_member_spec(config, number, name, progress)
        for number, name in enumerate(_assign_names(config.inference.specs))
    ]


def build_engine(config: Config, progress: ProgressCallback | None = None) -> Engine:
    """Build the configured engine without the pool that servers put around it; several engines become a pool."""
    specs = build_member_specs(config, progress)
    return specs[0].build() if len(specs) == 1 else build_pool(config, progress)


@contextmanager
def name_engine_in_errors(config: Config, number: int) -> Iterator[None]:
    """Add to a StartupError which of several engines it is about, and where that engine is configured."""
    try:
        yield
    except StartupError as error:
        if config.inference.engines:
            raise StartupError(f"[[engines]] in {config.config}, at [{number}]: {error}") from None
        if len(config.inference.specs) > 1:
            raise StartupError(f"Engine number {number + 1}: {error}") from None
        raise


def choose_parsers(config: Config, spec: EngineSpec) -> ParserChoice:
    """Return the operator's choice of output parsers for the models of an engine."""
    return ParserChoice(
        calls=spec.tool_call_parser or config.inference.tool_call_parser,
        reasoning=spec.reasoning_parser or config.inference.reasoning_parser,
        harmony=spec.harmony or config.inference.harmony,
    )


def _assign_names(specs: tuple[EngineSpec, ...]) -> list[str]:
    """Return a name per engine: vllm, vllm-2, vllm-3 … where the operator configured none."""
    names = [spec.name for spec in specs if spec.name]
    assigned = []
    for spec in specs:
        number, name = 1, spec.name or spec.kind
        while not spec.name and name in names:
            number += 1
            name = f"{spec.kind}-{number}"
        names.append(name)
        assigned.append(name)
    return assigned


def _build_member_spec(config: Config, number: int, name: str, progress: ProgressCallback | None) -> MemberSpec:
    spec = config.inference.specs[number]
    with name_engine_in_errors(config, number):
        kind = _load_engine_class(spec.kind)
        engine_settings = _build_settings(kind, config, spec)

    def build() -> Engine:
        with name_engine_in_errors(config, number):
            engine = kind(engine_settings)
        if progress is not None and hasattr(engine, "on_progress"):
            engine.on_progress = progress
        built: Engine = engine
        return built

    return MemberSpec(
        name=name,
        location=spec.url if spec.is_remote else " ".join([spec.url, *spec.models]),
        settings=engine_settings,
        build=build,
        max_running=spec.slots or (DEFAULT_REMOTE_SLOTS if spec.is_remote else None),
        drain=spec.drain,
    )


def _load_engine_class(kind: str) -> Any:
    try:
        found = find_plugin("engines", kind, ENGINES, Engine)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("antiphon"):
            raise
        raise StartupError(f"The {kind} engine needs the package {error.name}, which is not installed here.")
    if found is None:
        *others, last = list_names("engines", ENGINES)
        hint = " Use openai://HOST:PORT for any server with OpenAI's API." if kind in WEB_SCHEMES else ""
        raise StartupError(f"There is no engine {kind!r}; expected {', '.join(others)} or {last}.{hint}")
    return found


def _build_settings(engine: type, config: Config, spec: EngineSpec) -> Any:
    hint = get_type_hints(engine.__init__)["settings"]  # type: ignore[misc]  # a registered class
    kind = next(iter(get_args(hint)), hint)
    if spec.is_remote and "engine" not in kind.__struct_fields__:
        raise StartupError(f"The engine {spec.kind} is embedded: leave out the address.")
    if spec.path_models and "engine" in kind.__struct_fields__:
        raise StartupError(f"The engine {spec.kind} is a server: write {spec.kind}://HOST:PORT.")
    values = ((name, _setting_value(config, spec, name)) for name in kind.__struct_fields__)
    return kind(**{name: value for name, value in values if value is not None})


def _setting_value(config: Config, spec: EngineSpec, name: str) -> Any:
    overrides = {
        "engine": spec.url,
        "engine_key": spec.key,
        "engine_ca": spec.ca,
        "engine_level": spec.level or config.inference.engine_level,
        "model": spec.models,
        "slots": spec.slots or config.embedded.slots,
        "context": spec.context or config.inference.context,
        "reads": choose_parsers(config, spec),
    }
    if name in overrides:
        return overrides[name]
    candidates = [candidate for candidate in (f"{spec.kind}_{name}", name) if candidate in settings()]
    return config.get(candidates[0]) if candidates else None
