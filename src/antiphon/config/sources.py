"""Sources of settings: flag > environment > TOML file > default. The first source with a value is used as a whole.

Unknown names and invalid values raise StartupError, with the source and the expected value in one sentence.
"""

import difflib
import logging
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, inspect

from antiphon.config.areas import OTEL_VARIABLES
from antiphon.config.base_folders import config_home
from antiphon.config.deprecations import DEPRECATIONS
from antiphon.config.settings import PREFIX, Config, Setting, settings
from antiphon.config.toml_tables import TABLES, read_table, resolve_secret, to_path
from antiphon.errors import StartupError

T = TypeVar("T")
log = logging.getLogger(__name__)

# Settings whose values are not repeated in error messages.
_SECRET_SETTINGS = frozenset(
    {"api_key", "engine_key", "image_service", "reasoning_key", "web_search_key", "web_search_url"}
)
# Variables of other programs; a variable with our prefix takes precedence.
_UNPREFIXED = {"RESPONSES_MAX_TOOL_OUTPUT_BYTES": "max_tool_output_bytes", **OTEL_VARIABLES}
# Variables with our prefix that Kubernetes sets in every pod for a service named "antiphon".
_KUBERNETES_VARIABLE = re.compile(r"ANTIPHON_(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_\w+)")


class SettingsSurvey(Struct, frozen=True, kw_only=True):
    """The effective settings and their sources, or all problems that prevent the start."""

    config: Config | None  # None if there are problems
    origins: dict[str, str]  # by name: source of the effective value
    problems: list[str]  # one message for each
    deprecations: list[str] = []  # likewise, for names that are still accepted


def load(flags: Mapping[str, Any], warn: Callable[[str], object] = log.warning) -> Config:
    """Return the effective settings. `flags` holds the values of the command line, by name, as text.

    `warn` is called with a sentence about every deprecated name.
    """
    found = survey(flags)
    if found.config is None:
        raise StartupError(found.problems[0])
    for sentence in found.deprecations:
        warn(sentence)
    return found.config


def survey(flags: Mapping[str, Any]) -> SettingsSurvey:
    """Read the settings, and collect all problems instead of stopping at the first one."""
    problems: dict[str, None] = {}
    names = {name: row.name for row in settings().values() for name in row.names}

    def attempt(step: Callable[[], T]) -> T | None:
        try:
            return step()
        except StartupError as error:
            problems[str(error)] = None
            return None

    overrides = [*filter(None, map(attempt, _read_environment()))]
    overrides += [
        _SourceValue(name=names[name], value=value, origin=f"--{name.replace('_', '-')}", is_text=True, written=name)
        for name, value in flags.items()
    ]
    config_values = [entry for entry in overrides if entry.name == "config"]
    file = attempt(lambda: _find_file(config_values[-1] if config_values else None))
    content = {} if file is None else attempt(partial(_read_toml, file)) or {}
    from_file = [*filter(None, map(attempt, _read_file(file, content)))]
    effective = {entry.name: entry for entry in (*from_file, *overrides)}
    values = {name: attempt(partial(_convert, entry)) for name, entry in effective.items()}
    tables = {
        name: table
        for name in TABLES
        if name in content and (table := attempt(partial(read_table, name, content[name], str(file))))
    }
    if "engines" in tables and any(entry.name == "engine" for entry in from_file):
        problems[f"{file} has both `engine` and [[engines]]: remove one of them."] = None
    if any(entry.name == "engine" for entry in overrides):
        tables.pop("engines", None)
    config = None if problems else attempt(lambda: _build_config({**values, **tables, "config": file}))
    origins = {name: entry.origin for name, entry in effective.items()}
    used = [entry for entry in (*from_file, *overrides) if entry.written in DEPRECATIONS]
    deprecations = [DEPRECATIONS[entry.written].describe(entry.origin) for entry in used]
    return SettingsSurvey(config=config, origins=origins, problems=[*problems], deprecations=deprecations)


def _build_config(values: dict[str, Any]) -> Config:
    config = Config.from_settings(**values)
    if (key := config.web_search.key) is None:
        return config
    return config.with_settings(web_search_key=resolve_secret(key, "web_search_key is read"))


def make_clean_environment(folder: Path) -> dict[str, str]:
    """Return the environment for a server that depends on no settings and no files of this user."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return {**inherited, **{f"XDG_{kind}_HOME": str(folder) for kind in ("CONFIG", "CACHE", "DATA")}}


class _SourceValue(Struct, frozen=True, kw_only=True):
    name: str
    value: Any
    origin: str  # for messages: "--port", "ANTIPHON_PORT", "port in antiphon.toml"
    is_text: bool  # to be parsed; TOML values are typed
    written: str = ""  # the name that was used: that of the setting, or an alternative one


def _read_environment() -> Iterator[Callable[[], _SourceValue]]:
    """Yield a function for each variable that is set, which reads its value. Raises StartupError."""
    for variable, name in _UNPREFIXED.items():
        if value := os.environ.get(variable):
            yield partial(_SourceValue, name=name, value=value, origin=variable, is_text=True)
    for variable, value in os.environ.items():
        if variable.startswith(PREFIX) and value and not _is_kubernetes_variable(variable, value):
            yield partial(_from_variable, variable, value)


def _from_variable(variable: str, value: str) -> _SourceValue:
    variables = _settings_by_variable()
    if variable not in variables:
        raise StartupError(f"{variable} is not a setting{_suggest(variable, variables)}")
    parts = [part.strip() for part in value.split(",")] if variables[variable].is_repeatable else value
    name = variables[variable].name
    written = variable.removeprefix(PREFIX).lower()
    return _SourceValue(name=name, value=parts, origin=variable, is_text=True, written=written)


@cache
def _settings_by_variable() -> dict[str, Setting]:
    return {PREFIX + name.upper(): row for row in settings().values() for name in row.names}


def _is_kubernetes_variable(variable: str, value: str) -> bool:
    return bool(_KUBERNETES_VARIABLE.fullmatch(variable)) or (variable == "ANTIPHON_PORT" and "://" in value)


def _find_file(config_value: _SourceValue | None) -> Path | None:
    if config_value:
        path: Path = _convert(config_value)
        if not path.is_file():
            raise StartupError(f"{config_value.origin} names {path}, which is not a file.")
        return path
    candidates = (Path("antiphon.toml"), config_home() / "config.toml")
    return next((path for path in candidates if path.is_file()), None)


def _read_file(path: Path | None, content: dict[str, Any]) -> Iterator[Callable[[], _SourceValue]]:
    """Yield a function for each key of the file outside of tables, which reads its value. Raises StartupError."""
    seen: set[str] = set()
    for key, value in _flatten({name: value for name, value in content.items() if name not in TABLES}):
        yield partial(_from_key, key, value, path, seen)


def _from_key(key: str, value: Any, path: Path | None, seen: set[str]) -> _SourceValue:
    names = {name: row.name for row in settings().values() if row.name != "config" for name in row.names}
    if key not in names:
        raise StartupError(f"{key} in {path} is not a setting{_suggest(key, names)}")
    name = names[key]
    if name in seen:
        raise StartupError(f"{name} is set twice in {path}.")
    seen.add(name)
    is_single = settings()[name].is_repeatable and isinstance(value, str)
    values = [value] if is_single else value
    return _SourceValue(name=name, value=values, origin=f"{key} in {path}", is_text=False, written=key)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise StartupError(f"{path} cannot be read: {error.strerror}.")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StartupError(f"{path} is not valid TOML: {error}.")


def _flatten(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten sections into prefixes: `[fake] rate = 5` is `fake_rate = 5`."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}_")
        else:
            yield prefix + key, value


def _suggest(name: str, candidates: Iterable[str]) -> str:
    by_name = {candidate.removeprefix(PREFIX): candidate for candidate in sorted(candidates)}
    close = difflib.get_close_matches(name.removeprefix(PREFIX), by_name, n=1)
    return f"; did you mean {by_name[close[0]]}?" if close else "; `antiphon serve --help-all` lists them."


def _convert(entry: _SourceValue) -> Any:
    row = settings()[entry.name]
    try:
        value = msgspec.convert(
            _normalise_value(row, entry.value), row.type, strict=not entry.is_text, dec_hook=to_path
        )
        if isinstance(value, float) and not math.isfinite(value):
            raise msgspec.ValidationError("not finite")
    except msgspec.ValidationError:
        problem = "is invalid" if row.name in _SECRET_SETTINGS else f"is {_render_value(entry.value)}"
        raise StartupError(f"{entry.origin} {problem}; expected {row.expected}.")
    return value


def _render_value(value: Any) -> str:
    """Render a value as written. Repeatable settings are lists, even with one value."""
    return ", ".join(map(repr, value)) if isinstance(value, list | tuple) and value else repr(value)


def _normalise_value(row: Setting, value: Any) -> Any:
    """Replace synonyms, and split comma-separated values of settings that are lists of choices."""
    if isinstance(value, str | bool):
        return row.synonyms.get(str(value).lower(), value)
    is_choice_list = isinstance(row.kind, inspect.VarTupleType) and isinstance(row.kind.item_type, inspect.LiteralType)
    if is_choice_list and all(isinstance(text, str) for text in value):
        return [part.strip() for text in value for part in text.split(",")]
    return value
