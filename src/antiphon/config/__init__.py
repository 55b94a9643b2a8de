"""Settings: their table, the sources of their values, and the page that documents them."""

from antiphon.config.table import Config

__all__ = ["Config"]
