"""Writes the documentation pages that are generated from data, or with --check reports those that are out of date.

A page is a path and a function that returns its text; no other code writes these files.
"""

import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from tools import call_formats_page, client_matrix, configuration_page, engines_page, metrics_page
from tools.docs_site import api_pages
from tools.requirements import ROOT, Group, Row, load


def render_compatibility() -> str:
    """Render docs/compatibility.md: the requirements by area, with counts."""
    groups = load().group
    areas = [(letter, list(members)) for letter, members in groupby(groups, key=lambda group: group.letter)]
    return (
        "\n".join([_INTRODUCTION, *_render_overview(areas), *(line for area in areas for line in _render_area(*area))])
        + "\n"
    )


_INTRODUCTION = """\
<!-- Generated from requirements.toml by `make docs`. Do not edit. -->

# Compatibility

This page lists the requirements of the server and the current status of each. Tests refer to a row by its id, and
`make test` fails if a row claims more than the tests verify.

| status | meaning |
|---|---|
| works | tests with this id ran and passed |
| partly | tests verify a part of the requirement; the note in italics states what is missing |
| planned | not implemented yet; the release is named if one is scheduled |

*Format known, no model heard* means that the tests use texts in the format of a model family that no model wrote, such
as test strings of other projects.

## Overview
"""


def _render_overview(areas: list[tuple[str, list[Group]]]) -> list[str]:
    lines = ["| | Area | Works | Partly | Planned |", "|---|---|---:|---:|---:|"]
    total = [0, 0, 0]
    for letter, groups in areas:
        counts = _count_statuses(groups)
        total = [a + b for a, b in zip(total, counts, strict=True)]
        lines.append(f"| {letter} | {groups[0].title} | {counts[0]} | {counts[1]} | {counts[2]} |")
    return [*lines, f"| | Total | {total[0]} | {total[1]} | {total[2]} |", ""]


def _count_statuses(groups: list[Group]) -> list[int]:
    statuses = [row.status for group in groups for row in group.rows]
    return [statuses.count(status) for status in ("works", "partly", "planned")]


def _render_area(letter: str, groups: list[Group]) -> list[str]:
    lines = [f"## {letter}. {groups[0].title}", "", *_render_table(groups[0])]
    for group in groups[1:]:
        lines += [f"### {group.id}. {group.title}", "", *_render_table(group)]
    return lines


def _render_table(group: Group) -> list[str]:
    return ["| Id | Requirement | Status |", "|---|---|---|", *(_render_row(row) for row in group.rows), ""]


def _render_row(row: Row) -> str:
    notes = [row.note, "Format known, no model heard." if row.evidence == "format" else ""]
    text = " ".join([row.text, *(f"*{note}*" for note in notes if note)])
    status = f"{row.status} ({row.target})" if row.target and row.status == "planned" else row.status
    return f"| {row.id} | {text.replace('|', chr(92) + '|')} | {status} |"


PAGE_RENDERERS: dict[str, Callable[[], str]] = {
    **api_pages.PAGE_RENDERERS,
    "docs/compatibility.md": render_compatibility,
    "docs/configuration.md": configuration_page.page,
    "docs/engines.md": engines_page.render_page,
    "docs/matrix.md": client_matrix.render_page,
    "docs/metrics.md": metrics_page.render_page,
    "docs/tool-calls.md": call_formats_page.render_page,
}


def find_outdated(root: Path = ROOT) -> list[str]:
    return [name for name, render in PAGE_RENDERERS.items() if _read(root / name) != render()]


def _read(path: Path) -> str | None:
    return path.read_text("utf-8") if path.exists() else None


def main(arguments: list[str]) -> int:
    stale = find_outdated()
    if arguments == ["--check"]:
        for name in stale:
            print(f"{name} is out of date: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (ROOT / name).write_text(PAGE_RENDERERS[name](), "utf-8")
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
