"""Folders of a person's own, as the XDG base directory specification has them."""

import os
import tempfile
from pathlib import Path


def _home(variable: str, fallback: str) -> Path:
    """XDG base folders; a relative one is to be ignored, says their specification."""
    named = Path(os.environ.get(variable, ""))
    try:
        return (named if named.is_absolute() else Path.home() / fallback) / "antiphon"
    except RuntimeError:  # no home folder at all: a container with a bare user id
        return Path(tempfile.gettempdir()) / f"antiphon-{os.getuid()}"


def cache_home() -> Path:
    return _home("XDG_CACHE_HOME", ".cache")


def data_home() -> Path:
    return _home("XDG_DATA_HOME", ".local/share")


def config_home() -> Path:
    return _home("XDG_CONFIG_HOME", ".config")
