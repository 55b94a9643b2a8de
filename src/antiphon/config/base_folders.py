"""The folders for the files of one user, by the XDG Base Directory Specification."""

import os
import tempfile
from pathlib import Path

from antiphon.operating_system import get_user_id


def _base_folder(variable: str, fallback: str) -> Path:
    """Return our folder in an XDG base folder; the specification requires to ignore relative paths."""
    configured = Path(os.environ.get(variable, ""))
    try:
        return (configured if configured.is_absolute() else Path.home() / fallback) / "antiphon"
    except RuntimeError:  # no home folder: a container with a numeric user id
        return Path(tempfile.gettempdir()) / f"antiphon-{get_user_id()}"


def cache_home() -> Path:
    return _base_folder("XDG_CACHE_HOME", ".cache")


def data_home() -> Path:
    return _base_folder("XDG_DATA_HOME", ".local/share")


def config_home() -> Path:
    return _base_folder("XDG_CONFIG_HOME", ".config")
