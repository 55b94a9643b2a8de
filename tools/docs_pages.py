"""Writes the pages that are made from data, or with --check says which of them are out of date.

A page is a path and a function that returns its text; nothing else writes these files.
"""

import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from antiphon.config import docs_page as configuration
from tools import call_formats_page, engines_page, metrics_page
from tools.requirements import ROOT, Group, Row, load


def compatibility() -> str:
    """docs/compatibility.md: the requirements, area by area, with counts."""
    groups = load().group
    areas = [(letter, list(members)) for letter, members in groupby(groups, key=lambda group: group.letter)]
    return "\n".join([_HEAD, *_overview(areas), *(line for area in areas for line in _area(*area))]) + "\n"


_HEAD = """\
<!-- Made from requirements.toml by `make docs`. Do not edit. -->

# Compatibility

This page lists the requirements of the server and the current status of each. Tests refer to a row by its id, and
`make test` fails if a row claims more than the tests verify.

| status | meaning |
|---|---|
| works | tests with this id ran and passed |
| partly | tests verify a part of the requirement; the note in italics states what is missing |
| planned | not implemented yet; the release is named if one is scheduled |

## Overview
"""


def _overview(areas: list[tuple[str, list[Group]]]) -> list[str]:
    lines = ["| | Area | Works | Partly | Planned |", "|---|---|---:|---:|---:|"]
    total = [0, 0, 0]
    for letter, groups in areas:
        counts = _counts(groups)
        total = [a + b for a, b in zip(total, counts, strict=True)]
        lines.append(f"| {letter} | {groups[0].title} | {counts[0]} | {counts[1]} | {counts[2]} |")
    return [*lines, f"| | Total | {total[0]} | {total[1]} | {total[2]} |", ""]


def _counts(groups: list[Group]) -> list[int]:
    statuses = [row.status for group in groups for row in group.rows]
    return [statuses.count(status) for status in ("works", "partly", "planned")]


def _area(letter: str, groups: list[Group]) -> list[str]:
    lines = [f"## {letter}. {groups[0].title}", "", *_table(groups[0])]
    for group in groups[1:]:
        lines += [f"### {group.id}. {group.title}", "", *_table(group)]
    return lines


def _table(group: Group) -> list[str]:
    return ["| Id | Requirement | Status |", "|---|---|---|", *(_line(row) for row in group.rows), ""]


def _line(row: Row) -> str:
    text = f"{row.text} *{row.note}*" if row.note else row.text
    status = f"{row.status} ({row.target})" if row.target and row.status == "planned" else row.status
    return f"| {row.id} | {text.replace('|', chr(92) + '|')} | {status} |"


PAGES: dict[str, Callable[[], str]] = {
    "docs/compatibility.md": compatibility,
    "docs/configuration.md": configuration.page,
    "docs/engines.md": engines_page.page,
    "docs/metrics.md": metrics_page.page,
    "docs/tool-calls.md": call_formats_page.page,
}


def outdated(root: Path = ROOT) -> list[str]:
    return [name for name, make in PAGES.items() if _read(root / name) != make()]


def _read(path: Path) -> str | None:
    return path.read_text("utf-8") if path.exists() else None


def main(arguments: list[str]) -> int:
    stale = outdated()
    if arguments == ["--check"]:
        for name in stale:
            print(f"{name} is out of date: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (ROOT / name).write_text(PAGES[name](), "utf-8")
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
