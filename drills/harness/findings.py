"""What a drill found: how much it tried, what went against the invariants, and the figures it took on the way."""

import sys
from collections.abc import Iterable

from msgspec import Struct

_SHOWN = 20  # violations of each drill that are told one by one


class Figure(Struct, frozen=True):
    """`most` is its target; for a share that is to be high, `least`."""

    name: str
    value: float
    most: float | None = None
    least: float | None = None

    @property
    def missed(self) -> bool:
        over = self.most is not None and self.value > self.most
        return over or (self.least is not None and self.value < self.least)

    def __str__(self) -> str:
        return f"{self.name} {self.value:,.0f}" if self.value >= 100 else f"{self.name} {self.value:.3g}"


class Findings:
    def __init__(self, drill: str) -> None:
        self.drill = drill
        self.trials = 0
        self.violations = 0
        self.shown: list[str] = []
        self.seconds = 0.0
        self.figures: list[Figure] = []

    def tried(self, times: int = 1) -> None:
        self.trials += times

    def violated(self, sentence: str) -> None:
        self.violations += 1
        if self.violations <= _SHOWN:
            self.shown.append(sentence)
            self.say(f"VIOLATION: {sentence}")

    def all_violated(self, sentences: Iterable[str]) -> None:
        for sentence in sentences:
            self.violated(sentence)

    def say(self, sentence: str) -> None:
        sys.stderr.write(f"{self.drill}: {sentence}\n")
        sys.stderr.flush()

    def figure(self, figure: Figure) -> None:
        self.figures.append(figure)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def table(found: list[Findings]) -> str:
    heads = ("drill", "trials", "violations", "seconds", "figures")
    lines = [heads, *(_cells(one) for one in found)]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join(_line(line, widths) for line in lines)


def _cells(one: Findings) -> tuple[str, ...]:
    figures = ", ".join(map(str, one.figures))
    return one.drill, f"{one.trials:,}", f"{one.violations:,}", f"{one.seconds:.0f}", figures


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    name, *numbers = cells[:4]
    aligned = [cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True)]
    return "  ".join([name.ljust(widths[0]), *aligned, cells[4]]).rstrip()
