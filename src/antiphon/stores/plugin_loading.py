"""Loads a registry entry on demand, so that a plug-in's package is required only where the plug-in is selected."""

from importlib import import_module
from typing import Any

from antiphon.errors import StartupError

EXTRAS = {"asyncpg": "postgres", "redis": "redis"}  # package → extra of antiphon that installs it


def load(reference: str) -> Any:
    """Import the object named by "module:Class". Raises StartupError if its package is not installed."""
    module, _, name = reference.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        message = f"The package {package} is not installed: pip install 'antiphon[{EXTRAS[package]}]'"
        raise StartupError(message) from None
