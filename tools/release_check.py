"""Checks the packages as a stranger gets them: built twice with the same bytes, installed elsewhere, and serving.

    make release-check                                       with the Python of .venv
    make release-check PYTHONS="python3.12 python3.13"       with others
    make release-check EXTRAS=all                            with all optional dependencies
    make release-check VENV=build/py314 PYTHON=python3.14    with a development environment of another Python

Each Python gets an empty environment outside the checkout, into which pip installs the wheel from dist/ and its
dependencies. The time from there to the first answer of the fake engine is printed.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import Request, urlopen

ROOT = Path(__file__).parent.parent
PACKAGED = ("src", "docs", "pyproject.toml", "CHANGELOG.md", "LICENSE", "README.md", ".gitignore")
SECONDS = 300.0
_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")
_OLD_TIME = 1_000_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", default=[sys.executable], help="interpreters to install for")
    parser.add_argument("--extras", default="", help="extras to install, separated by commas")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where the packages are written")
    options = parser.parse_args()
    shutil.rmtree(options.dist, ignore_errors=True)
    wheel, sdist = build_packages(ROOT, options.dist)
    check_reproducible(options.dist)
    print(f"{wheel.name} and {sdist.name}: built twice, and once from the sdist, with the same bytes.")
    for python in options.pythons:
        version, installed, answered = try_package(
            python, f"{wheel}[{options.extras}]" if options.extras else str(wheel)
        )
        print(f"Python {version}: installed in {installed:.1f} s, first answer {answered:.1f} s later.")


def build_packages(source: Path, target: Path) -> tuple[Path, Path]:
    """Build the wheel and the sdist of a source tree."""
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", target], cwd=source, check=True, timeout=SECONDS)
    (wheel,), (sdist,) = target.glob("*.whl"), target.glob("*.tar.gz")
    return wheel, sdist


def check_reproducible(dist: Path) -> None:
    """Raise AssertionError unless a copy of the checkout, and the sdist, give the same bytes as those in `dist`."""
    with tempfile.TemporaryDirectory() as name:
        copy = copy_source(Path(name) / "copy")
        again = build_packages(copy, Path(name) / "again")
        shutil.unpack_archive(again[1], Path(name) / "sdist", filter="data")
        (unpacked,) = (Path(name) / "sdist").iterdir()
        from_sdist, _ = build_packages(unpacked, Path(name) / "from-sdist")
        for path in (*again, from_sdist):
            assert path.read_bytes() == (dist / path.name).read_bytes(), f"{path} differs from {dist / path.name}"


def copy_source(target: Path) -> Path:
    """Copy what is packaged, with other times and permissions, which must have no effect."""
    target.mkdir()
    for name in PACKAGED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, target / name)
    for path in target.rglob("*"):
        os.utime(path, (_OLD_TIME, _OLD_TIME))
        path.chmod(0o700 if path.is_dir() else 0o600)
    return target


def try_package(python: str, package: str) -> tuple[str, float, float]:
    """Install a package in an empty environment and serve. Returns the version of Python and the seconds of both."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", f"{folder}/env"], check=True, timeout=SECONDS)
        bin_folder = Path(folder) / "env" / "bin"
        pip: list[str | Path] = [bin_folder / "python", "-m", "pip", "install", "-q", "--no-cache-dir"]
        subprocess.run([*pip, package], cwd=folder, check=True, timeout=SECONDS)
        installed = time.monotonic()
        ask_server(bin_folder, Path(folder))
        answered = time.monotonic()
        show = "import platform; print(platform.python_version())"
        version = subprocess.run([bin_folder / "python", "-c", show], capture_output=True, text=True, check=True).stdout
    return version.strip(), installed - began, answered - installed


def ask_server(bin_folder: Path, folder: Path) -> None:
    """Serve the fake engine in a folder, ask it a question and for the stored answer, stream one, and stop it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ANTIPHON_"))}
    environment |= {f"XDG_{kind}_HOME": str(folder) for kind in ("CONFIG", "CACHE", "DATA")}
    command: list[str | Path] = [bin_folder / "antiphon", "serve", "--engine", "fake", "--port", "0"]
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
    try:
        url = f"{_wait_for_address(process, log)}/v1/responses"
        answer = json.loads(_fetch(url, {"model": "fake", "input": "Hello!"}))
        assert answer["status"] == "completed"
        assert json.loads(_fetch(f"{url}/{answer['id']}"))["output"] == answer["output"]
        assert b"event: response.completed" in _fetch(url, {"model": "fake", "input": "Hello!", "stream": True})
    finally:
        process.terminate()
        code = process.wait(timeout=60)
    assert code == 0, log.read_text("utf-8")


def _fetch(url: str, fields: dict[str, object] | None = None) -> bytes:
    body = json.dumps(fields).encode() if fields else None
    with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=SECONDS) as reply:
        content: bytes = reply.read()
    return content


def _wait_for_address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if found := _ADDRESS.search(log.read_text("utf-8")):
            return found[0]
        time.sleep(0.02)
    raise RuntimeError(f"The server does not answer: {log.read_text('utf-8')}")


if __name__ == "__main__":
    main()
