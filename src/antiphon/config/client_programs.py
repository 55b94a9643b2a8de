"""Folders and environment of the programs that `antiphon connect` configures."""

import os
import sys
from pathlib import Path


def find_program_folder(folder: str, *, mac_folder: str = "", windows_folder: str = "", variable: str = "") -> Path:
    """Return the folder of a program's files, which a variable of the environment may replace.

    `windows_folder` is below %APPDATA%.
    """
    if configured := os.environ.get(variable):
        return Path(configured).expanduser()
    if sys.platform == "darwin" and mac_folder:
        return Path(mac_folder).expanduser()
    if sys.platform == "win32" and windows_folder:
        return Path(os.environ.get("APPDATA", "~/AppData/Roaming"), windows_folder).expanduser()
    home = os.environ.get("XDG_CONFIG_HOME", "")
    if folder.startswith("~/.config/") and Path(home).is_absolute():
        return Path(home, folder.removeprefix("~/.config/"))
    return Path(folder).expanduser()


def make_environment(**variables: str) -> dict[str, str]:
    """Return the environment of this process with more variables."""
    return {**os.environ, **variables}
