"""The table that a run prints: one row for each figure, its target, and whether it was reached."""

from collections.abc import Sequence

from msgspec import Struct


class Row(Struct, frozen=True, kw_only=True):
    """`target` bounds the ratio to the yardstick where there is one, else the figure itself."""

    name: str
    ours: float
    yardstick: float | None = None
    target: float | None = None
    beside: float | None = None  # what the yardstick has here, where the figure itself is judged

    @property
    def judged(self) -> float:
        return self.ours / self.yardstick if self.yardstick else self.ours

    @property
    def over(self) -> bool:
        return self.target is not None and self.judged > self.target

    def cells(self) -> tuple[str, ...]:
        return (
            self.name,
            _figure(self.ours),
            _figure(self.beside if self.yardstick is None else self.yardstick),
            f"{self.judged:.2f}" if self.yardstick else "",
            f"≤ {self.target:.3g}" if self.target is not None else "",
            "" if self.target is None else "over" if self.over else "PASS",
        )


def table(rows: Sequence[Row], yardstick: str = "bare ASGI") -> str:
    return grid(("", "ours", yardstick, "ratio", "target", ""), [row.cells() for row in rows])


def grid(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [heads, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join(_line(line, widths) for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        cell.ljust(width) if at == 0 else cell.rjust(width)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *others]).rstrip()


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"
