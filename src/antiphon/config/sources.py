"""Where settings come from: flag > environment > TOML file > default. The first that has one wins, whole.

A name nobody knows and a value that does not fit are StartupErrors: one sentence with the place and what is expected.
"""

import difflib
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec
from msgspec import NODEFAULT, Meta, Struct, inspect
from msgspec.structs import replace

from antiphon.config.areas.compat import SPELLINGS
from antiphon.config.areas.observability import STANDARD
from antiphon.config.help_text import LIMITS, Note
from antiphon.config.rate_limits import Quota, Shedding
from antiphon.config.table import Config
from antiphon.config.toml_tables import TABLES, read_tables
from antiphon.config.value_types import WORDS
from antiphon.config.web_search import WebSearchSettings, with_key
from antiphon.config.xdg import config_home
from antiphon.errors import StartupError
from antiphon.limits import Limits

T = TypeVar("T")

PREFIX = "ANTIPHON_"
# Settings whose values are not repeated in a sentence.
_SECRET = frozenset({"api_key", "engine_key", "reasoning_key", "web_search_key", "web_search_url"})
# Fields of Config that are structs: the settings in them have a prefix.
_NESTED: dict[str, tuple[str, type[Struct]]] = {
    "web_search": ("web_search_", WebSearchSettings),
    "limits": ("limit_", Limits),
    "quota": ("quota_", Quota),
    "shed": ("shed_", Shedding),
}
# Without our prefix, as another server calls them; what has our prefix wins.
_ELSEWHERE = {"RESPONSES_MAX_TOOL_OUTPUT_BYTES": "max_tool_output_bytes", **STANDARD}
# Under our prefix and yet no settings: what Kubernetes gives every pod for a service that is named "antiphon".
_NO_SETTING = re.compile(r"ANTIPHON_(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_\w+)")


class Setting(Struct, frozen=True, kw_only=True):
    """A row of the table: a field of Config, or of its Limits under the prefix `limit_`."""

    name: str
    type: Any
    kind: inspect.Type
    note: Note
    default: Any

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def names(self) -> tuple[str, ...]:
        """All that it goes by; in the help and the docs it has one name."""
        also = SPELLINGS.get(self.name)
        return self.name, *self.note.also, *([] if also is None else [also])

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def repeats(self) -> bool:
        kinds = self.kind.types if isinstance(self.kind, inspect.UnionType) else (self.kind,)
        return any(isinstance(kind, inspect.VarTupleType) for kind in kinds)

    @property
    def switch(self) -> bool:
        return isinstance(self.kind, inspect.BoolType)

    @property
    def expected(self) -> str:
        return _expected(self.kind)

    @property
    def shown_default(self) -> str:
        """The default as a person reads it."""
        if self.note.default:
            return self.note.default
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


@cache
def settings() -> dict[str, Setting]:
    rows = [*_rows(Config, ""), *[row for prefix, struct in _NESTED.values() for row in _rows(struct, prefix)]]
    return {row.name: row for row in rows}


def load(flags: Mapping[str, Any]) -> Config:
    """The settings in force. `flags` holds what was given on the command line, by name, as text."""
    named = [given for given in (*_from_environment(), *_from_flags(flags)) if given.name == "config"]
    file = _file(named[-1] if named else None)
    content = {} if file is None else _read(file)
    written, given = [*_from_file(file, content)], [*_from_environment(), *_from_flags(flags)]
    values = {one.name: _converted(one) for one in {one.name: one for one in (*written, *given)}.values()}
    nested = {name: _nested(values, *where) for name, where in _NESTED.items()}
    tables = {} if file is None else read_tables(content, str(file))
    if "engines" in tables and any(one.name == "engine" for one in written):
        raise StartupError(f"{file} has both `engine` and [[engines]]: one of them will do.")
    if any(one.name == "engine" for one in given):
        tables.pop("engines", None)
    config = Config(**{**values, **tables, **nested, "config": file})
    return replace(config, web_search=with_key(config.web_search))


class Survey(Struct, frozen=True, kw_only=True):
    """What was found when all settings were looked at, each by itself."""

    config: Config | None  # as `load` gives it, if it can
    places: dict[str, str]  # of what is set: where the value in force comes from
    wrong: list[str]  # a sentence for each thing that keeps a server from starting


def survey(flags: Mapping[str, Any]) -> Survey:
    """As `load`, but nothing stops at the first thing that is wrong."""
    wrong: dict[str, None] = {}

    def tried(step: Callable[[], T]) -> T | None:
        try:
            return step()
        except StartupError as error:
            wrong[str(error)] = None
            return None

    ours = [one for one in os.environ.items() if one[0].startswith(PREFIX) and one[1] and not _is_no_setting(*one)]
    given = [tried(partial(_from_variable, *one)) for one in ours] + [*_from_flags(flags)]
    named = [one for one in given if one is not None and one.name == "config"]
    file = tried(lambda: _file(named[-1] if named else None))
    content = (tried(lambda: _read(file)) or {}) if file is not None else {}
    plain, seen = {name: value for name, value in content.items() if name not in TABLES}, set[str]()
    written = [tried(partial(_from_key, *one, file, seen)) for one in _flat(plain)]
    places: dict[str, str] = {}
    for one in (*written, *given):
        if one is not None:
            tried(partial(_converted, one))
            places[one.name] = one.place
    for name in content.keys() & TABLES.keys():
        tried(partial(read_tables, {name: content[name]}, str(file)))
    return Survey(config=tried(lambda: load(flags)), places=places, wrong=[*wrong])


def _nested(values: dict[str, Any], prefix: str, struct: type[Struct]) -> Struct:
    """Takes its own out of all."""
    return struct(**{name.removeprefix(prefix): values.pop(name) for name in [*values] if name.startswith(prefix)})


class _Given(Struct, frozen=True, kw_only=True):
    name: str
    value: Any
    place: str  # for a person: "--port", "ANTIPHON_PORT", "port in antiphon.toml"
    text: bool  # given as text, to be read; TOML has types of its own


def _rows(struct: type[Struct], prefix: str) -> Iterator[Setting]:
    for row in msgspec.structs.fields(struct):
        if row.name in _NESTED or row.name in TABLES:
            continue
        kind = inspect.type_info(row.type)
        yield Setting(
            name=prefix + row.name,
            type=row.type,
            kind=kind.type if isinstance(kind, inspect.Metadata) else kind,
            note=_note(row.type),
            default=row.default_factory() if row.default is NODEFAULT else row.default,
        )


def _note(annotated: Any) -> Note:
    """A Note of our own, or the description of a limit."""
    text = ""
    for mark in get_args(annotated)[1:]:
        if isinstance(mark, Note):
            return mark
        if isinstance(mark, Meta):
            text = mark.description or text
    return LIMITS(text)


def _from_flags(flags: Mapping[str, Any]) -> Iterator[_Given]:
    for name, value in flags.items():
        yield _Given(name=name, value=value, place=settings()[name].flag, text=True)


def _from_environment() -> Iterator[_Given]:
    for variable, name in _ELSEWHERE.items():
        if value := os.environ.get(variable):
            yield _Given(name=name, value=value, place=variable, text=True)
    for variable, value in os.environ.items():
        if variable.startswith(PREFIX) and value and not _is_no_setting(variable, value):
            yield _from_variable(variable, value)


def _from_variable(variable: str, value: str) -> _Given:
    known = _variables()
    if variable not in known:
        raise StartupError(f"{variable} is not a setting{_suggestion(variable, known)}")
    parts = [part.strip() for part in value.split(",")] if known[variable].repeats else value
    return _Given(name=known[variable].name, value=parts, place=variable, text=True)


@cache
def _variables() -> dict[str, Setting]:
    return {PREFIX + name.upper(): row for row in settings().values() for name in row.names}


def _is_no_setting(variable: str, value: str) -> bool:
    return bool(_NO_SETTING.fullmatch(variable)) or (variable == "ANTIPHON_PORT" and "://" in value)


def _file(named: _Given | None) -> Path | None:
    if named:
        path: Path = _converted(named)
        if not path.is_file():
            raise StartupError(f"{named.place} names {path}, which is not a file.")
        return path
    usual = (Path("antiphon.toml"), config_home() / "config.toml")
    return next((path for path in usual if path.is_file()), None)


def _from_file(path: Path | None, content: dict[str, Any]) -> Iterator[_Given]:
    seen: set[str] = set()
    for written, value in _flat({name: value for name, value in content.items() if name not in TABLES}):
        yield _from_key(written, value, path, seen)


def _from_key(written: str, value: Any, path: Path | None, seen: set[str]) -> _Given:
    known = {name: row.name for row in settings().values() if row.name != "config" for name in row.names}
    if written not in known:
        raise StartupError(f"{written} in {path} is not a setting{_suggestion(written, known)}")
    name = known[written]
    if name in seen:
        raise StartupError(f"{name} is set twice in {path}.")
    seen.add(name)
    one = settings()[name].repeats and isinstance(value, str)
    return _Given(name=name, value=[value] if one else value, place=f"{name} in {path}", text=False)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise StartupError(f"{path} cannot be read: {error.strerror}.")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StartupError(f"{path} is not valid TOML: {error}.")


def _flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A section is a prefix: `[fake] rate = 5` is `fake_rate = 5`."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}_")
        else:
            yield prefix + key, value


def _suggestion(name: str, known: Iterable[str]) -> str:
    bare = {one.removeprefix(PREFIX): one for one in sorted(known)}
    close = difflib.get_close_matches(name.removeprefix(PREFIX), bare, n=1)
    return f"; did you mean {bare[close[0]]}?" if close else "; `antiphon serve --help` lists them."


def _converted(given: _Given) -> Any:
    row = settings()[given.name]
    try:
        value = msgspec.convert(_worded(row, given.value), row.type, strict=not given.text, dec_hook=_path)
        if isinstance(value, float) and not math.isfinite(value):
            raise msgspec.ValidationError("not finite")
    except msgspec.ValidationError:
        was = "has a value that does not fit" if row.name in _SECRET else f"is {_told(given.value)}"
        raise StartupError(f"{given.place} {was}; expected {row.expected}.")
    return value


def _told(value: Any) -> str:
    """As it was written. What may be repeated is a list, also if it was given once."""
    return ", ".join(map(repr, value)) if isinstance(value, list | tuple) and value else repr(value)


def _worded(row: Setting, value: Any) -> Any:
    """In our own words. Of names that are a list, each may be several with commas between them."""
    if isinstance(value, str | bool):
        return row.note.words.get(str(value).lower(), value)
    named = isinstance(row.kind, inspect.VarTupleType) and isinstance(row.kind.item_type, inspect.LiteralType)
    if named and all(isinstance(one, str) for one in value):
        return [part.strip() for one in value for part in one.split(",")]
    return value


def _path(kind: type, value: Any) -> Path:
    if not isinstance(value, str | Path):
        raise TypeError(kind)
    return Path(value).expanduser()


def _expected(kind: inspect.Type) -> str:
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "a whole number" + _range(kind)
        case inspect.FloatType():
            return "a number" + _range(kind)
        case inspect.LiteralType():
            return " or ".join(map(str, kind.values))
        case inspect.VarTupleType():
            return _expected(kind.item_type) + ", or a list"
        case inspect.UnionType():
            return _expected(next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
        case inspect.CustomType():
            return "a path"
        case inspect.StrType(pattern=str() as pattern):
            return WORDS.get(pattern, "ASCII text without spaces")
        case _:
            return "text that is not empty"


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.le is not None:
        return f" from {kind.ge} to {kind.le}"
    if kind.gt is not None:
        return f" above {kind.gt}"
    return f" of at least {kind.ge}" if kind.ge is not None else ""
