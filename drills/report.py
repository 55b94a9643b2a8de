"""The results in a page: commit, date and machine of a run, the number of its trials, and its table.

They stand between two comments. Rows of the same commit and size stay, so that a long run can be split into several
commands.
"""

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from drills.harness.findings import Findings, render_cells, table_cells
from drills.registry import Size, build_drills

BEGIN, END = "<!-- results of the drills -->", "<!-- end of the results -->"
_SECTION = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
_ROW = re.compile(r"^([a-z0-9-]+) +([\d,]+) +([\d,]+) +(\d+)(?:  (.*))?$", re.MULTILINE)
_GIB = 1 << 30


def write_report(page: Path, size: Size, results: Sequence[Findings]) -> None:
    """Replace the section of the page. Raises ValueError if it has none."""
    text = page.read_text()
    if not (found := _SECTION.search(text)):
        raise ValueError(f"{page} has no section for results: it needs the lines {BEGIN} and {END}")
    run = f"A {size} run at commit {describe_commit()}"
    rows = {cells[0]: cells for cells in _ROW.findall(found[0])} if f"{run}," in found[0] else {}
    rows |= {findings.drill: table_cells(findings) for findings in results}
    page.write_text(text.replace(found[0], render_section(run, rows)))


def render_section(run: str, rows: dict[str, tuple[str, ...]]) -> str:
    names = [name for name in build_drills("full") if name in rows]
    trials, violations = (sum(int(rows[name][column].replace(",", "")) for name in names) for column in (1, 2))
    missing = [name for name in build_drills("full") if name not in rows]
    lines = [
        BEGIN,
        f"{run}, {datetime.now(UTC):%Y-%m-%d}, on {describe_machine()}: {len(names)} drills, {trials:,} trials,",
        f"{violations:,} violations.",
        *([f"Not run: {', '.join(missing)}."] if missing else []),
        "",
        "```",
        render_cells([rows[name] for name in names]),
        "```",
        END,
    ]
    return "\n".join(lines)


def describe_commit() -> str:
    """Return the short hash, and whether files other than the documentation differ from it."""
    commit = _run_git("rev-parse", "--short=12", "HEAD")
    changed = _run_git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
    return f"{commit} with uncommitted changes" if changed else commit


def _run_git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.strip()


def describe_machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    processor = f"{os.cpu_count()} cores ({platform.machine()})"
    return f"{processor}, {memory:.0f} GiB of memory, {platform.system()}, Python {platform.python_version()}"
