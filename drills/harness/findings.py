"""Results of a drill: the number of trials, the violations, and the measured figures."""

import sys
from collections.abc import Iterable, Sequence

from msgspec import Struct

_MAX_REPORTED = 20  # violations of each drill that are printed one by one


class Figure(Struct, frozen=True):
    """A measured value; one above its `maximum` or below its `minimum` is a violation."""

    name: str
    value: float
    maximum: float | None = None
    minimum: float | None = None

    @property
    def excess(self) -> str:
        """How the value violates its limit; empty if it does not. NaN violates every limit."""
        if self.maximum is not None and not self.value <= self.maximum:
            return f"{self} is above the limit of {self.maximum:g}"
        if self.minimum is not None and not self.value >= self.minimum:
            return f"{self} is below the limit of {self.minimum:g}"
        return ""

    def __str__(self) -> str:
        return f"{self.name} {self.value:,.0f}" if self.value >= 100 else f"{self.name} {self.value:.3g}"


class Findings:
    def __init__(self, drill: str) -> None:
        self.drill = drill
        self.trials = 0
        self.violations = 0
        self.reported: list[str] = []
        self.seconds = 0.0
        self.figures: list[Figure] = []

    def add_trials(self, count: int = 1) -> None:
        self.trials += count

    def add_violation(self, sentence: str) -> None:
        self.violations += 1
        if self.violations <= _MAX_REPORTED:
            self.reported.append(sentence)
            self.print_line(f"VIOLATION: {sentence}")

    def add_violations(self, sentences: Iterable[str]) -> None:
        for sentence in sentences:
            self.add_violation(sentence)

    def print_line(self, sentence: str) -> None:
        sys.stderr.write(f"{self.drill}: {sentence}\n")
        sys.stderr.flush()

    def add_figure(self, figure: Figure) -> None:
        self.figures.append(figure)

    def check_figures(self) -> None:
        """Report the figures beyond their limits, once the drill is over.

        Tests with few trials do not call this: their percentiles and ratios depend on single requests.
        """
        self.add_violations(filter(None, (figure.excess for figure in self.figures)))


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def render_table(results: Sequence[Findings]) -> str:
    return render_cells([table_cells(one) for one in results])


def render_cells(rows: Sequence[tuple[str, ...]]) -> str:
    """Render rows of `table_cells` under their heads."""
    lines = [("drill", "trials", "violations", "seconds", "figures"), *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join(_render_row(line, widths) for line in lines)


def table_cells(findings: Findings) -> tuple[str, ...]:
    figures = ", ".join(map(str, findings.figures))
    return findings.drill, f"{findings.trials:,}", f"{findings.violations:,}", f"{findings.seconds:.0f}", figures


def _render_row(cells: tuple[str, ...], widths: list[int]) -> str:
    name, *numbers = cells[:4]
    aligned = [cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True)]
    return "  ".join([name.ljust(widths[0]), *aligned, cells[4]]).rstrip()
