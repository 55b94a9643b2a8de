"""The printed table: one row per figure, with its goal and whether it was reached; also as Markdown."""

import os
import platform
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct


class Row(Struct, frozen=True, kw_only=True):
    """One figure: ours, that of the baseline, and those of others. The goal limits the ratio of the first two, or our
    figure itself if there is no baseline or the ratio does not matter.
    """

    name: str
    figures: Sequence[float | None]
    goal: float | None = None
    is_ratio: bool = True
    at_least: bool = False  # the goal is a minimum
    group: str = ""

    @property
    def ratio(self) -> float | None:
        ours, baseline = (*self.figures, None)[:2]
        return ours / baseline if ours is not None and baseline else None

    @property
    def verdict(self) -> str:
        has_baseline = len(self.figures) > 1
        judged = self.ratio if self.is_ratio and has_baseline else self.figures[0]
        if self.goal is None or judged is None:
            return ""
        return "reached" if (judged >= self.goal if self.at_least else judged <= self.goal) else "missed"

    @property
    def misses_goal(self) -> bool:
        return self.verdict == "missed"

    def cells(self, columns: int) -> tuple[str, ...]:
        """Return the cells for `columns` figures."""
        limits_ours = "" if self.is_ratio else " (ours)"
        figures = [render_figure(figure) for figure in self.figures]
        return (
            self.name,
            *figures,
            *[""] * (columns - len(figures)),
            "" if self.ratio is None else f"{self.ratio:.2f}",
            "" if self.goal is None else f"{'≥' if self.at_least else '≤'} {self.goal:.3g}{limits_ours}",
            self.verdict,
        )


def render_table(rows: Sequence[Row], columns: Sequence[str] = ("ours", "bare ASGI")) -> str:
    width = max(len(row.group) + 2 if row.group else 0 for row in rows)
    lines = [(row.group.ljust(width) + name, *cells) for row in rows for name, *cells in [row.cells(len(columns))]]
    return render_grid(("", *columns, "ratio", "goal", ""), lines)


def render_markdown(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Render the table for docs/benchmarks.md, under a heading that says where and when it was measured."""
    heads = ("", *columns, "ratio", "goal", "")
    lines = [heads, ("---",) * len(heads), *(row.cells(len(columns)) for row in rows)]
    return f"#### {_describe_machine()}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def render_grid(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [heads, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join(_render_line(line, widths) for line in lines)


def _render_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        cell.ljust(width) if at == 0 else cell.rjust(width)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *others]).rstrip()


def render_figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def _describe_machine() -> str:
    names = (line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    processor = next(names, platform.machine()).rpartition(":")[2].strip()
    git = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    date = time.strftime("%Y-%m-%d", time.gmtime())
    python = platform.python_version()
    return f"{date}, commit {git.stdout.strip()}: {os.cpu_count()} cores, {processor}, Python {python}"
