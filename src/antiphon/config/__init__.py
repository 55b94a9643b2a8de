"""Settings: the table of them, where their values come from, and the page that documents them."""

from antiphon.config.table import Config

__all__ = ["Config"]
