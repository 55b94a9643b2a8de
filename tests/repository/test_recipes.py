"""The recipes of CONTRIBUTING.md ("Adding an engine", …) work as they are written.

Each recipe is applied to a copy of the repository, and its command runs there. A recipe consists of these steps, and
every code block belongs to one of them:

    Write `FILE`:                       the block is the whole file, which is new
    Add to `FILE`, below `LINE`:        the block is inserted below the one line that begins with LINE
    In `FILE`, replace `OLD` by `NEW`.  OLD occurs once in the file
    Run:                                the block is a pytest command
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import Struct

from tests.support.paths import ROOT

COPIED_FOLDERS = ("src", "tests", "tools", "bench", "drills")
COPIED_FILES = ("pyproject.toml", "requirements.toml")
PYTEST = ".venv/bin/pytest"
# Runs pytest and prints which source it imports, because the virtual environment offers that of the checkout as well.
RUNNER = "import sys, antiphon, pytest; print('source:', antiphon.__file__); sys.exit(pytest.main(sys.argv[1:]))"
MAX_SECONDS = 240
# Tests of the architecture that judge a new file; the others count over the whole repository.
RULES = "layers or rows or cycle or folders or docstring or unique or mirror or registered"

_FENCE = r"( *)```\w+\n(.*?)^ *```$"
_CODE = r"(``.+?``|`[^`]+`)"
PATTERNS = {
    "write": re.compile(rf"\bWrite `([^`]+)`[^`]*:\n\n{_FENCE}", re.DOTALL | re.MULTILINE),
    "add": re.compile(rf"\bAdd to `([^`]+)`, below {_CODE}[^`]*:\n\n{_FENCE}", re.DOTALL | re.MULTILINE),
    "replace": re.compile(rf"\bIn `([^`]+)`, replace {_CODE}\s+by\s+{_CODE}", re.DOTALL),
    "run": re.compile(rf"\bRun:\n\n{_FENCE}", re.DOTALL | re.MULTILINE),
}


class Expectation(Struct, frozen=True):
    """How to recognise the tests of the example, and how many of them must pass."""

    name: str
    count: int


# The numbers are a little lower than the present ones, because contract suites change.
RECIPES = {
    "Adding an engine": Expectation("[echo", 12),
    "Adding an HTTP engine": Expectation("[tgi", 30),
    "Adding a tool-call format": Expectation("echo", 18),
    "Adding a tool": Expectation("[grey_pixel", 10),
    "Adding a store": Expectation("ledger", 100),
    "Adding a route": Expectation("test_echo.py", 2),
}


def read_recipe(title: str) -> str:
    """Return the section with this title."""
    sections = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split("\n## ")
    (recipe,) = [section for section in sections if section.startswith(f"{title}\n")]
    return recipe


def list_steps(recipe: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the kind and the arguments of every step, in order."""
    found = [
        (match.start(), kind, match.groups()) for kind, regex in PATTERNS.items() for match in regex.finditer(recipe)
    ]
    assert sum(kind != "replace" for _, kind, _ in found) == len(re.findall(r"^ *```\w+$", recipe, re.MULTILINE))
    return [(kind, arguments) for _, kind, arguments in sorted(found)]


def copy_repository(target: Path) -> None:
    """Copy what the tests need. Compiled files are copied too, and remain valid since their times are kept."""
    for folder in COPIED_FOLDERS:
        shutil.copytree(ROOT / folder, target / folder, ignore=shutil.ignore_patterns("*.pyc.*", "node_modules"))
    for file in COPIED_FILES:
        shutil.copy2(ROOT / file, target / file)


def apply_step(root: Path, kind: str, arguments: tuple[str, ...]) -> None:
    path = root / arguments[0]
    match kind, arguments[1:]:
        case "write", (indent, block):
            assert not path.exists(), f"{path} exists already"
            path.write_text(_unindent(block, indent), "utf-8")
        case "add", (line, indent, block):
            _insert_below(path, _strip_backticks(line), _unindent(block, indent))
        case "replace", (old, new):
            text = path.read_text("utf-8")
            assert text.count(_strip_backticks(old)) == 1, f"{old} does not occur once in {path}"
            path.write_text(text.replace(_strip_backticks(old), _strip_backticks(new)), "utf-8")
        case _:
            raise AssertionError(f"There is no step {kind!r}.")


def _insert_below(path: Path, beginning: str, block: str) -> None:
    lines = path.read_text("utf-8").splitlines(keepends=True)
    (number,) = [number for number, line in enumerate(lines, 1) if line.strip().startswith(beginning)]
    path.write_text("".join([*lines[:number], block, *lines[number:]]), "utf-8")


def _unindent(block: str, indent: str) -> str:
    """Remove the indentation of the list that contains the block, and keep the indentation of the code."""
    return "".join([line.removeprefix(indent) for line in block.splitlines(keepends=True)])


def _strip_backticks(code: str) -> str:
    return code.removeprefix("``").removesuffix("``") if code.startswith("``") else code[1:-1]


def run_tests(root: Path, command: str) -> list[str]:
    """Run a pytest command in the copy, which must succeed. Returns the lines about tests that passed."""
    program, *arguments = shlex.split(command.replace("\\\n", ""))
    assert program == PYTEST
    result = subprocess.run(
        [sys.executable, "-c", RUNNER, "-vv", "-p", "no:cacheprovider", *arguments],
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"},
        capture_output=True,
        text=True,
        timeout=MAX_SECONDS,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"source: {root / 'src'}{os.sep}" in result.stdout
    return [line for line in result.stdout.splitlines() if " PASSED" in line]


def follow_recipe(title: str, root: Path) -> str:
    """Apply all steps but the last one, and return the command of that one."""
    *steps, (last, (indent, command)) = list_steps(read_recipe(title))
    assert last == "run"
    for kind, arguments in steps:
        apply_step(root, kind, arguments)
    return _unindent(command, indent)


@pytest.mark.slow
@pytest.mark.parametrize("title", RECIPES)
def test_the_command_of_a_recipe_passes_after_its_steps(title: str, tmp_path: Path) -> None:
    root, expected = tmp_path.resolve(), RECIPES[title]
    copy_repository(root)
    passed = run_tests(root, follow_recipe(title, root))
    assert sum(expected.name in line for line in passed) >= expected.count, "\n".join(passed)


@pytest.mark.slow
def test_all_examples_together_keep_the_rules_of_the_architecture_and_of_style(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    copy_repository(root)
    for title in RECIPES:
        follow_recipe(title, root)
    assert run_tests(root, f"{PYTEST} tests/repository/test_architecture.py -k '{RULES}'")
    recipes = "".join(map(read_recipe, RECIPES))
    files = {file for file in re.findall(r"`((?:src|tests)/[\w/]+\.py)`", recipes) if (root / file).exists()}
    for command in (["format", "--diff"], ["check", "--no-fix"]):
        result = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", *sorted(files)], cwd=root, capture_output=True
        )
        assert result.returncode == 0, (result.stdout + result.stderr).decode()
