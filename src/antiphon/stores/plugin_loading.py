"""Loads what a registry's line names, when it is asked for: a plug-in's own package is needed by nobody else."""

from importlib import import_module
from typing import Any

from antiphon.errors import StartupError

EXTRAS = {"asyncpg": "postgres", "redis": "redis"}  # package → the extra of ours that brings it


def load(line: str) -> Any:
    """The class behind "module:Class". Raises StartupError if its package is not installed."""
    module, _, name = line.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        said = f"The package {package} is not installed: pip install 'antiphon[{EXTRAS[package]}]'"
        raise StartupError(said) from None
