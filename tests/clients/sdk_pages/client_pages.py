"""Extracts the configuration and code blocks of the pages in docs/clients, which tests run unchanged except for the
address.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.paths import DOCS

PAGES = DOCS / "clients"
ADDRESS = "127.0.0.1:8000"  # address of the server in the pages

_SEPARATOR = "\x1e"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def extract_blocks(page: str, language: str, *, port: int = 8000) -> list[str]:
    """Return all blocks in this language, in order, with the address changed to this port."""
    found = _BLOCK.findall((PAGES / page).read_text("utf-8"))
    return [body.replace(ADDRESS, f"127.0.0.1:{port}") for name, body in found if name == language]


def extract_block(page: str, language: str, containing: str = "", *, port: int = 8000) -> str:
    """Return the only block in this language that contains this text."""
    matching = [block for block in extract_blocks(page, language, port=port) if containing in block]
    assert len(matching) == 1, f"{page} has {len(matching)} {language} blocks containing {containing!r}"
    return matching[0]


def run_program(page: str, port: int, folder: Path, *arguments: str) -> str:
    """Run the Python blocks of a page with the packages of the tests, as one program; return its output."""
    return run_script("\n".join(extract_blocks(page, "python", port=port)), folder, *arguments)


def run_script(script: str, folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def run_scripts(scripts: Sequence[str], folder: Path) -> list[str]:
    """Run scripts one after the other, and return the output of each.

    They share a process, since to import the packages takes longer than to run them, and each has its own names.
    """
    loop = "for script in {!r}:\n    exec(script, {{'__name__': '__main__'}})\n    print({!r}, end='')"
    return run_script(loop.format([*scripts], _SEPARATOR), folder).split(_SEPARATOR)[:-1]
