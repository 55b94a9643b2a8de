"""The printed table: one row per figure, with its target and whether it was reached."""

from collections.abc import Sequence

from msgspec import Struct


class Row(Struct, frozen=True, kw_only=True):
    """One figure. `target` limits the ratio to the baseline if there is one, otherwise the figure itself."""

    name: str
    ours: float
    baseline: float | None = None
    target: float | None = None
    reference: float | None = None  # figure of the baseline, shown only: the target limits the figure itself

    @property
    def judged_value(self) -> float:
        return self.ours / self.baseline if self.baseline else self.ours

    @property
    def misses_target(self) -> bool:
        return self.target is not None and self.judged_value > self.target

    def cells(self) -> tuple[str, ...]:
        return (
            self.name,
            render_figure(self.ours),
            render_figure(self.reference if self.baseline is None else self.baseline),
            f"{self.judged_value:.2f}" if self.baseline else "",
            f"≤ {self.target:.3g}" if self.target is not None else "",
            "" if self.target is None else "over" if self.misses_target else "PASS",
        )


def render_table(rows: Sequence[Row], baseline: str = "bare ASGI") -> str:
    return render_grid(("", "ours", baseline, "ratio", "target", ""), [row.cells() for row in rows])


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
