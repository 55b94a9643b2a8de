"""Every setting there is, once: its flag, its variable, its TOML key and its help are made from this table.

One name for one setting: `fake_rate` ⇔ `--fake-rate` ⇔ `ANTIPHON_FAKE_RATE` ⇔ `fake_rate`, or `rate` under `[fake]`.
A new one is a row in its area (areas/). How values are found and checked is sources.py's business. Nothing else reads
the environment.
"""

from typing import Annotated

from msgspec import Struct

from antiphon.config.areas.compat import CompatSettings
from antiphon.config.help_text import CLIENT
from antiphon.config.rate_limits import Quota, Shedding, TenantSpec
from antiphon.config.value_types import Name
from antiphon.config.web_search import WebSearchSettings
from antiphon.limits import Limits


class Config(CompatSettings, Struct, frozen=True, kw_only=True):
    """All settings, checked. A Limits field `body_bytes` is the setting `limit_body_bytes`, and so on."""

    url: Annotated[
        Name | None, CLIENT("Server that `antiphon chat` and `antiphon models` talk to.", "http://HOST:PORT")
    ] = None

    web_search: WebSearchSettings = WebSearchSettings()
    limits: Limits = Limits()
    quota: Quota = Quota()
    shed: Shedding = Shedding()

    # In the file alone, as tables.
    tenants: dict[str, TenantSpec] = {}

    @property
    def server_url(self) -> str:
        """Where a client on this machine finds the server of these settings."""
        if self.url:
            return self.url.rstrip("/")
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def __repr__(self) -> str:
        """Without the keys: a Config may end up in a log."""
        return f"Config(model={self.model!r}, engine={self.engine!r}, host={self.host!r}, port={self.port})"
