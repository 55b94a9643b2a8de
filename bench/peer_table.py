"""The table of the comparison with other gateways, for the terminal and as Markdown with the machine it was made on."""

import os
import platform
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from bench.harness.gateways import AGENTIC, GATEWAYS, OURS, SMG, VERSIONS
from bench.harness.table import render_figure, render_grid
from bench.peer_cases import Line


class PeerRow(Struct, frozen=True, kw_only=True):
    """One figure of all gateways that have it."""

    row: str
    line: Line
    figures: dict[str, float]

    @property
    def ratio(self) -> float | None:
        ours, peer = self.figures.get(OURS), self.figures.get(SMG)
        return None if ours is None or not peer else ours / peer

    @property
    def misses_goal(self) -> bool:
        return self.verdict == "missed"

    @property
    def verdict(self) -> str:
        judged = self.ratio if self.line.is_ratio else self.figures.get(OURS)
        if self.line.goal is None or judged is None:
            return ""
        reached = judged >= self.line.goal if self.line.at_least else judged <= self.line.goal
        return "reached" if reached else "missed"

    def _goal(self) -> str:
        line = self.line
        if line.goal is None:
            return ""
        return f"{'≥' if line.at_least else '≤'} {line.goal:g}" + ("" if line.is_ratio else " (ours)")

    def cells(self) -> tuple[str, ...]:
        return (
            self.line.title,
            *(render_figure(self.figures.get(name)) for name in GATEWAYS),
            "" if self.ratio is None else f"{self.ratio:.2f}",
            self._goal(),
            self.verdict,
        )


def _heads() -> tuple[str, ...]:
    peers = (f"{name} {VERSIONS[name]}" for name in (SMG, AGENTIC))
    return "", OURS, *peers, "ratio to smg", "goal", ""


def render_peer_table(rows: Sequence[PeerRow]) -> str:
    width = max(len(row.row) for row in rows)
    heads = _heads()
    cells = [(f"{row.row:{width}}  {title}", *others) for row in rows for title, *others in [row.cells()]]
    return render_grid(heads, cells)


def render_markdown(rows: Sequence[PeerRow]) -> str:
    lines = [_heads(), tuple("---" for _ in _heads()), *(row.cells() for row in rows)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"#### {describe_machine()}\n\n{table}\n"


def describe_machine() -> str:
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    date = time.strftime("%Y-%m-%d", time.gmtime())
    return (
        f"{os.cpu_count()} × {_processor()}, Python {platform.python_version()}, commit {commit.stdout.strip()}, {date}"
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
