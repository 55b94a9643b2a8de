"""All settings, derived from Config: name, flag, variable, type, default and help text of each."""

from functools import cache
from typing import Any, get_args

from msgspec import NODEFAULT, Meta, Struct, inspect
from msgspec.structs import FieldInfo

from antiphon.config.areas.compatibility import ALTERNATIVE_NAMES
from antiphon.config.help_text import LIMITS, SettingNote
from antiphon.config.table import fields_by_name
from antiphon.config.toml_tables import TABLES
from antiphon.config.value_types import EXPECTED_TEXTS

PREFIX = "ANTIPHON_"


class Setting(Struct, frozen=True, kw_only=True):
    """One setting: a field of an area of Config, with the prefix of that area."""

    name: str
    type: Any
    kind: inspect.Type
    note: SettingNote
    default: Any

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the setting; the help and the docs show the first one."""
        alternative = ALTERNATIVE_NAMES.get(self.name)
        return self.name, *self.note.aliases, *([] if alternative is None else [alternative])

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def is_repeatable(self) -> bool:
        kinds = self.kind.types if isinstance(self.kind, inspect.UnionType) else (self.kind,)
        return any(isinstance(kind, inspect.VarTupleType) for kind in kinds)

    @property
    def is_switch(self) -> bool:
        return isinstance(self.kind, inspect.BoolType)

    @property
    def expected(self) -> str:
        return _describe_expected(self.kind)

    @property
    def default_text(self) -> str:
        """The default as shown in the help."""
        if self.note.default:
            return self.note.default
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


@cache
def settings() -> dict[str, Setting]:
    """Return all settings by name. Tables of the TOML file are no settings: they have no flag and no variable."""
    return {name: _make_setting(name, row) for name, (_, row) in fields_by_name().items() if name not in TABLES}


def _make_setting(name: str, row: FieldInfo) -> Setting:
    kind = inspect.type_info(row.type)
    return Setting(
        name=name,
        type=row.type,
        kind=kind.type if isinstance(kind, inspect.Metadata) else kind,
        note=_find_note(row.type),
        default=row.default_factory() if row.default is NODEFAULT else row.default,
    )


def _find_note(annotated: Any) -> SettingNote:
    """Return the note of an annotation, or a note made from the description of a limit."""
    text = ""
    for annotation in get_args(annotated)[1:]:
        if isinstance(annotation, SettingNote):
            return annotation
        if isinstance(annotation, Meta):
            text = annotation.description or text
    return LIMITS(text)


def _describe_expected(kind: inspect.Type) -> str:
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "a whole number" + _describe_range(kind)
        case inspect.FloatType():
            return "a number" + _describe_range(kind)
        case inspect.LiteralType():
            return " or ".join(map(str, kind.values))
        case inspect.VarTupleType():
            return _describe_expected(kind.item_type) + ", or a list"
        case inspect.UnionType():
            return _describe_expected(next(member for member in kind.types if not isinstance(member, inspect.NoneType)))
        case inspect.CustomType():
            return "a path"
        case inspect.StrType(pattern=str() as pattern):
            return EXPECTED_TEXTS.get(pattern, "ASCII text without spaces")
        case _:
            return "text that is not empty"


def _describe_range(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.le is not None:
        return f" from {kind.ge} to {kind.le}"
    if kind.gt is not None:
        return f" above {kind.gt}"
    return f" of at least {kind.ge}" if kind.ge is not None else ""
