"""Config, all settings by area, and the flag, variable, type, default and help text that are derived for each.

A setting has one name: `fake_rate` ⇔ `--fake-rate` ⇔ `ANTIPHON_FAKE_RATE` ⇔ `fake_rate`, or `rate` under `[fake]`. A
new setting is a field of its area (areas.py), for example `config.embedded.fake_rate`. sources.py finds and checks the
values; no other module reads the environment.
"""

from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, get_args

from msgspec import NODEFAULT, Struct, field, inspect
from msgspec.structs import FieldInfo, fields, replace

from antiphon.config.areas import (
    ALTERNATIVE_NAMES,
    VALUE_SYNONYMS,
    CompatibilitySettings,
    EmbeddedSettings,
    InferenceSettings,
    ObservabilitySettings,
    ServerSettings,
    StorageSettings,
    ToolSettings,
    VectorSettings,
)
from antiphon.config.image_settings import ImageSettings
from antiphon.config.rate_limits import QuotaSettings, SheddingSettings, TenantSpec
from antiphon.config.setting_types import EXPECTED_TEXTS, Name
from antiphon.config.toml_tables import TABLES
from antiphon.config.tool_settings import WebSearchSettings
from antiphon.limits import Limits

# Areas whose settings have a prefix: `limits.body_bytes` is the setting `limit_body_bytes`.
_PREFIXES: Final = {"web_search": "web_search_", "limits": "limit_", "quota": "quota_", "shed": "shed_"}

CLIENT, LIMITS = "Client", "Limits"
# Headings in the help and the docs, each by the first setting below it.
_HEADINGS: Final = {
    "config": "Server",
    "model": "Model",
    "first_token_timeout": "Deadlines",
    "store": "Store",
    "embedding_model": "Vector stores",
    "allow_egress": "Egress",
    "max_turns": "Tools",
    "image_service": "Images",
    "gpu_layers": "Engines llamacpp and openvino",
    "openvino_cache_tokens": "Engine openvino",
    "fake_level": "Engine fake",
    "log_level": "Logging",
    "access_log": "Observing",
    "default_service_tier": "Compatibility",
    "url": CLIENT,
    "web_search_url": "Web search",
    "limit_body_bytes": LIMITS,
    "quota_requests_per_minute": "Quotas",
    "shed_memory": "Shedding",
}


class Config(Struct, frozen=True, kw_only=True):
    """All settings, validated. Settings are in the struct of their area; names are unique across areas."""

    config: Annotated[
        Path | None,
        "TOML file to read settings from.",
        "./antiphon.toml, else $XDG_CONFIG_HOME/antiphon/config.toml, if it exists",
    ] = None
    server: ServerSettings = ServerSettings()
    inference: InferenceSettings = field(default_factory=InferenceSettings)
    storage: StorageSettings = StorageSettings()
    vectors: VectorSettings = VectorSettings()
    tools: ToolSettings = ToolSettings()
    images: ImageSettings = ImageSettings()
    embedded: EmbeddedSettings = EmbeddedSettings()
    observability: ObservabilitySettings = ObservabilitySettings()
    compatibility: CompatibilitySettings = CompatibilitySettings()
    url: Annotated[Name | None, "URL of the running server, for commands that ask it.", "http://HOST:PORT"] = None
    web_search: WebSearchSettings = WebSearchSettings()
    limits: Limits = Limits()
    quota: QuotaSettings = QuotaSettings()
    shed: SheddingSettings = SheddingSettings()

    # Only in the TOML file, as tables.
    tenants: dict[str, TenantSpec] = {}

    @property
    def server_url(self) -> str:
        """URL at which a client on this machine reaches the server."""
        if self.url:
            return self.url.rstrip("/")
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.server.host, self.server.host)
        return f"http://[{host}]:{self.server.port}" if ":" in host else f"http://{host}:{self.server.port}"

    @classmethod
    def from_settings(cls, **values: Any) -> "Config":
        """Return a Config with these settings, by name (`port=0, limit_body_bytes=1000`), and defaults otherwise."""
        return cls().with_settings(**values)

    def with_settings(self, **values: Any) -> "Config":
        """Return a copy with other values for these settings, by name. A whole area (`limits=…`) is a value too."""
        by_area: dict[str, dict[str, Any]] = defaultdict(dict)
        for name, value in values.items():
            area, key = locate(name)
            by_area[area][key] = value
        own = by_area.pop("", {})
        areas = {area: replace(getattr(self, area), **changed) for area, changed in by_area.items()}
        return replace(self, **areas, **own)

    def get(self, name: str) -> Any:
        area, key = locate(name)
        return getattr(getattr(self, area) if area else self, key)

    def __repr__(self) -> str:
        """Omits the keys: a Config may end up in a log."""
        model, engine = self.inference.model, self.inference.engine
        return f"Config({model=!r}, {engine=!r}, host={self.server.host!r}, port={self.server.port})"


@cache
def fields_by_name() -> dict[str, tuple[str, FieldInfo]]:
    """Return the area and the field of each setting, by name. The area of a field of Config itself is empty."""
    found: dict[str, tuple[str, FieldInfo]] = {}
    for row in fields(Config):
        if isinstance(row.type, type) and issubclass(row.type, Struct):
            prefix = _PREFIXES.get(row.name, "")
            found |= {prefix + nested.name: (row.name, nested) for nested in fields(row.type)}
        else:
            found[row.name] = "", row
    return found


def locate(name: str) -> tuple[str, str]:
    """Return the area and the field of a setting; ("", name) for a field of Config itself."""
    area, row = fields_by_name().get(name, ("", None))
    return area, name if row is None else row.name


PREFIX = "ANTIPHON_"


class Setting(Struct, frozen=True, kw_only=True):
    """One setting: a field of an area of Config, with the prefix of that area."""

    name: str
    type: Any
    kind: inspect.Type
    group: str  # the heading in the help and the docs
    text: str
    default: Any
    default_note: str = ""  # text for the default, if its value is not descriptive

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the setting; the help and the docs show the first one."""
        return (self.name, ALTERNATIVE_NAMES[self.name]) if self.name in ALTERNATIVE_NAMES else (self.name,)

    @property
    def synonyms(self) -> dict[str, str]:
        """Other spellings of its values."""
        return VALUE_SYNONYMS.get(self.name, {})

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def is_repeatable(self) -> bool:
        kinds = self.kind.types if isinstance(self.kind, inspect.UnionType) else (self.kind,)
        return any(isinstance(kind, inspect.VarTupleType) for kind in kinds)

    @property
    def value_kind(self) -> inspect.Type:
        """Type of one value: without None, and without the list of a repeatable setting."""
        kinds = self.kind.types if isinstance(self.kind, inspect.UnionType) else (self.kind,)
        kind = next(kind for kind in kinds if not isinstance(kind, inspect.NoneType))
        return kind.item_type if isinstance(kind, inspect.VarTupleType) else kind

    @property
    def is_switch(self) -> bool:
        return isinstance(self.kind, inspect.BoolType)

    @property
    def expected(self) -> str:
        is_list = isinstance(self.kind, inspect.VarTupleType)
        return _describe_expected(self.value_kind) + (", or a list" if is_list else "")

    @property
    def default_text(self) -> str:
        """The default as shown in the help."""
        if self.default_note:
            return self.default_note
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


@cache
def settings() -> dict[str, Setting]:
    """Return all settings by name. Tables of the TOML file are no settings: they have no flag and no variable."""
    rows, group = {}, ""
    for name, (_, row) in fields_by_name().items():
        if name not in TABLES:
            group = _HEADINGS.get(name, group)
            rows[name] = _make_setting(name, row, group)
    return rows


def _make_setting(name: str, row: FieldInfo, group: str) -> Setting:
    kind = inspect.type_info(row.type)
    text, *default_note = (note for note in get_args(row.type)[1:] if isinstance(note, str))
    return Setting(
        name=name,
        type=row.type,
        kind=kind.type if isinstance(kind, inspect.Metadata) else kind,
        group=group,
        text=text,
        default=row.default_factory() if row.default is NODEFAULT else row.default,
        default_note="".join(default_note),
    )


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
