"""The table of all settings. Flags, variables, TOML keys and help texts are generated from it.

A setting has one name: `fake_rate` ⇔ `--fake-rate` ⇔ `ANTIPHON_FAKE_RATE` ⇔ `fake_rate`, or `rate` under `[fake]`. A
new setting is a field of its area (areas/). config/sources.py finds and checks the values; no other module reads the
environment.
"""

from typing import Annotated

from msgspec import Struct

from antiphon.config.areas.compat import CompatSettings
from antiphon.config.help_text import CLIENT
from antiphon.config.rate_limits import QuotaSettings, SheddingSettings, TenantSpec
from antiphon.config.value_types import Name
from antiphon.config.web_search import WebSearchSettings
from antiphon.limits import Limits


class Config(CompatSettings, Struct, frozen=True, kw_only=True):
    """All settings, validated. Fields of nested structs have a prefix: `limits.body_bytes` is `limit_body_bytes`."""

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
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def __repr__(self) -> str:
        """Omits the keys: a Config may end up in a log."""
        return f"Config(model={self.model!r}, engine={self.engine!r}, host={self.host!r}, port={self.port})"
