"""Settings: their table, and the sources of their values."""

from antiphon.config.settings import Config

__all__ = ["Config"]
