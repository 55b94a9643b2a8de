"""Config: all settings by area. Flags, variables, TOML keys and help texts are generated from it (settings.py).

A setting has one name: `fake_rate` ⇔ `--fake-rate` ⇔ `ANTIPHON_FAKE_RATE` ⇔ `fake_rate`, or `rate` under `[fake]`. A
new setting is a field of its area (areas/), for example `config.embedded.fake_rate`. sources.py finds and checks the
values; no other module reads the environment.
"""

from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Struct, field
from msgspec.structs import FieldInfo, fields, replace

from antiphon.config.areas.compatibility import CompatibilitySettings
from antiphon.config.areas.embedded import EmbeddedSettings
from antiphon.config.areas.inference import InferenceSettings
from antiphon.config.areas.observability import ObservabilitySettings
from antiphon.config.areas.server import ServerSettings
from antiphon.config.areas.storage import StorageSettings
from antiphon.config.areas.tools import ToolSettings
from antiphon.config.help_text import CLIENT, SERVER
from antiphon.config.rate_limits import QuotaSettings, SheddingSettings, TenantSpec
from antiphon.config.value_types import Name
from antiphon.config.web_search import WebSearchSettings
from antiphon.limits import Limits

# Areas whose settings have a prefix: `limits.body_bytes` is the setting `limit_body_bytes`.
_PREFIXES: Final = {"web_search": "web_search_", "limits": "limit_", "quota": "quota_", "shed": "shed_"}


class Config(Struct, frozen=True, kw_only=True):
    """All settings, validated. Settings are in the struct of their area; names are unique across areas."""

    config: Annotated[
        Path | None,
        SERVER(
            "TOML file to read settings from.",
            "./antiphon.toml, else $XDG_CONFIG_HOME/antiphon/config.toml, if it exists",
        ),
    ] = None
    server: ServerSettings = ServerSettings()
    inference: InferenceSettings = field(default_factory=InferenceSettings)
    storage: StorageSettings = StorageSettings()
    tools: ToolSettings = ToolSettings()
    embedded: EmbeddedSettings = EmbeddedSettings()
    observability: ObservabilitySettings = ObservabilitySettings()
    compatibility: CompatibilitySettings = CompatibilitySettings()
    url: Annotated[
        Name | None,
        CLIENT("URL of the server that `antiphon chat` and `antiphon models` connect to.", "http://HOST:PORT"),
    ] = None
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
        """Return the value of a setting, by name."""
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
