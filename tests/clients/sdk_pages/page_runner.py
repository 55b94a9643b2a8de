"""A page of docs/clients, run where its client is installed: build/clients, or a place of its own.

The Python of a page is one script, from top to bottom; what each of its blocks printed is told apart. The client finds
an empty home, and nothing of the environment of whoever runs the tests.
"""

import subprocess
from pathlib import Path

from tests.clients.sdk_pages.client_pages import blocks
from tests.support.paths import ROOT

SCRIPT = Path(__file__).with_name("script.toml")  # what the fake engine says to the questions of the pages

_BUILD = ROOT / "build"
_BETWEEN = "\x1e"
_SECONDS = 90


def printed(page: str, port: int, home: Path, *, place: str = "clients") -> list[str]:
    """By each block of Python."""
    script = home / "page.py"
    script.write_text(f"\nprint({_BETWEEN!r}, end='')\n".join(blocks(page, "python", port=port)), "utf-8")
    return run(["python", str(script)], home, place=place).split(_BETWEEN)


def run(command: list[str], home: Path, *, place: str = "clients") -> str:
    folder = _BUILD / place / "bin"
    environment = {"HOME": str(home), "PATH": f"{folder}:/usr/local/bin:/usr/bin:/bin", "PYTHONUTF8": "1"}
    ran = subprocess.run(
        [str(folder / command[0]) if (folder / command[0]).exists() else command[0], *command[1:]],
        cwd=home, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS,
    )  # fmt: skip
    assert ran.returncode == 0, f"{command} ended with {ran.returncode}:\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout
