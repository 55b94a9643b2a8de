"""Runs a page of docs/clients where its client is installed: in build/clients or in another folder of build.

The Python blocks of a page are one script, run from top to bottom, whose output is split by block. The client gets an
empty home directory and none of the environment of the test run.
"""

import subprocess
from pathlib import Path

from tests.clients.sdk_pages.client_pages import extract_blocks
from tests.support.paths import ROOT

SCRIPT = Path(__file__).with_name("script.toml")  # answers of the fake engine to the questions of the pages

_BUILD = ROOT / "build"
_SEPARATOR = "\x1e"
_SECONDS = 90


def run_page(page: str, port: int, home: Path, *, install: str = "clients") -> list[str]:
    """Run the Python blocks of a page; return the output of each."""
    script = home / "page.py"
    script.write_text(f"\nprint({_SEPARATOR!r}, end='')\n".join(extract_blocks(page, "python", port=port)), "utf-8")
    return run_command(["python", str(script)], home, install=install).split(_SEPARATOR)


def run_command(command: list[str], home: Path, *, install: str = "clients") -> str:
    folder = _BUILD / install / "bin"
    environment = {"HOME": str(home), "PATH": f"{folder}:/usr/local/bin:/usr/bin:/bin", "PYTHONUTF8": "1"}
    result = subprocess.run(
        [str(folder / command[0]) if (folder / command[0]).exists() else command[0], *command[1:]],
        cwd=home, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS,
    )  # fmt: skip
    assert result.returncode == 0, f"{command} ended with {result.returncode}:\n{result.stdout}\n{result.stderr}"
    return result.stdout
