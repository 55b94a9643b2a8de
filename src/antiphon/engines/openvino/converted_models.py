"""Converted forms of GGUF files in the cache: a folder for each path, with that of the newest version of its file."""

import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path

MAX_CONVERTED = 8  # each is as large as its file


def find_converted(path: Path, cache: Path) -> Path:
    """Return the folder for the converted form of a GGUF file, by its path and by its size and modification time."""
    stat = path.stat()
    name = hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:16]
    return cache / "openvino" / name / f"{stat.st_size}-{stat.st_mtime_ns}"


def mark_used(folder: Path) -> None:
    """Record that the model is loaded now."""
    with suppress(OSError):  # the cache may be read-only
        os.utime(folder.parent)


def store_converted(made: Path, folder: Path) -> None:
    """Move a converted form to its folder in the cache, in place of that of an older version of the file."""
    shutil.rmtree(folder.parent, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    made.rename(folder)


def remove_unused(cache: Path) -> None:
    """Remove the models whose last use is the longest ago, and what conversions have left that were killed."""
    for folder in sorted((cache / "openvino").iterdir(), key=_last_used, reverse=True)[MAX_CONVERTED:]:
        shutil.rmtree(folder, ignore_errors=True)


def _last_used(folder: Path) -> float:
    with suppress(FileNotFoundError):  # another process removed it
        return folder.stat().st_mtime
    return 0.0
