"""Config → engines: each from the settings that it says it has, alone or as a pool.

An engine's settings are filled from Config by name: `rate` of the fake engine is `fake_rate`, `context` is `context`.
What is said of one engine alone (its EngineSpec) comes first. What is left open (None) is the engine's to decide.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, get_args, get_type_hints

from antiphon.config import Config
from antiphon.config.engines import EngineSpec
from antiphon.core.prompt import Reads
from antiphon.engines.base import Engine
from antiphon.engines.pool import Pool, Seat
from antiphon.engines.registry import ENGINES
from antiphon.errors import StartupError

Progress = Callable[[str, int, int], None]  # the task, what is done of it, the whole

_WEB = frozenset({"http", "https"})  # what a URL begins with that does not say what listens there
SLOTS = 1024  # of a server that does not say how many it has, and of which nobody else says so


def build_engine(config: Config, progress: Progress | None = None) -> Engine:
    """`progress` hears of fetches and loads, if the engine has any to tell of. Several engines are a pool."""
    made = seats(config, progress)
    return made[0].build() if len(made) == 1 else _pool(config, made)


def build_pool(config: Config, progress: Progress | None = None) -> Pool:
    """Also of one: others may join it later."""
    return _pool(config, seats(config, progress))


def seats(config: Config, progress: Progress | None = None) -> list[Seat]:
    """StartupError for an engine that nobody knows, or that cannot be as it is wanted."""
    return [_seat(config, number, name, progress) for number, name in enumerate(_names(config.specs))]


@contextmanager
def about(config: Config, number: int) -> Iterator[None]:
    """A StartupError says which of several engines it is about, and where that is configured."""
    try:
        yield
    except StartupError as error:
        if config.engines:
            raise StartupError(f"[[engines]] in {config.config}, at [{number}]: {error}") from None
        if len(config.specs) > 1:
            raise StartupError(f"Of the engines, number {number + 1}: {error}") from None
        raise


def reads_of(config: Config, spec: EngineSpec) -> Reads:
    """The operator's word on how the output of its models is to be read."""
    return Reads(
        calls=spec.tool_call_parser or config.tool_call_parser,
        thoughts=spec.reasoning_parser or config.reasoning_parser,
        harmony=spec.harmony or config.harmony,
    )


def _pool(config: Config, made: list[Seat]) -> Pool:
    return Pool(made, patience=config.first_token_timeout, grace=config.run_timeout)


def _names(specs: tuple[EngineSpec, ...]) -> list[str]:
    """vllm, vllm-2, vllm-3 … where the operator gave none."""
    names = [spec.name for spec in specs if spec.name]
    found = []
    for spec in specs:
        number, name = 1, spec.name or spec.kind
        while not spec.name and name in names:
            number += 1
            name = f"{spec.kind}-{number}"
        names.append(name)
        found.append(name)
    return found


def _seat(config: Config, number: int, name: str, progress: Progress | None) -> Seat:
    spec = config.specs[number]
    with about(config, number):
        kind = _kind(spec.kind)
        settings = _settings(kind, config, spec)

    def build() -> Engine:
        with about(config, number):
            engine = kind(settings)
        if hasattr(engine, "on_progress"):
            engine.on_progress = progress
        built: Engine = engine
        return built

    return Seat(
        name=name,
        place=spec.url if spec.runs_elsewhere else " ".join([spec.url, *spec.models]),
        settings=settings,
        build=build,
        bound=spec.slots or (SLOTS if spec.runs_elsewhere else None),
        drain=spec.drain,
    )


def _kind(named: str) -> Any:
    place = ENGINES.get(named)
    if place is None:
        *others, last = sorted(ENGINES)
        hint = " Any server that speaks OpenAI's API is openai://HOST:PORT." if named in _WEB else ""
        raise StartupError(f"There is no engine {named!r}; expected {', '.join(others)} or {last}.{hint}")
    module, _, name = place.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("antiphon"):
            raise
        raise StartupError(f"The {named} engine needs the package {error.name}, which is not installed here.")


def _settings(engine: type, config: Config, spec: EngineSpec) -> Any:
    hint = get_type_hints(engine.__init__)["settings"]  # type: ignore[misc]  # of the class as registered
    kind = next(iter(get_args(hint)), hint)
    if spec.runs_elsewhere and "engine" not in kind.__struct_fields__:
        raise StartupError(f"The engine {spec.kind} runs here: it is named without an address.")
    found = ((name, _value(config, spec, name)) for name in kind.__struct_fields__)
    return kind(**{name: value for name, value in found if value is not None})


def _value(config: Config, spec: EngineSpec, name: str) -> Any:
    own = {
        "engine": spec.url,
        "engine_key": spec.key,
        "engine_ca": spec.ca,
        "engine_level": spec.level or config.engine_level,
        "model": spec.models,
        "slots": spec.slots or config.slots,
        "reads": reads_of(config, spec),
    }
    if name in own:
        return own[name]
    prefixed = f"{spec.kind}_{name}"
    return getattr(config, prefixed) if hasattr(config, prefixed) else getattr(config, name, None)
