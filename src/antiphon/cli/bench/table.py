"""Figures as text for people: what was measured down the side, one column for each server or level. Pure."""

from collections.abc import Callable, Sequence
from itertools import groupby

from antiphon.cli.bench.figures import Figures
from antiphon.cli.bench.plan import Level

Cell = Callable[[Figures], float | None]
GAP = 2
LEAST_WIDTH = 12
MOST_COLUMNS = 6
LOUD_CPU = 0.5
LOUD_PIECES = 1.1


def _ms(value: float | None) -> str:
    """Three digits, or whole ones where there are more."""
    if value is None:
        return "–"
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


ROWS: tuple[tuple[str, Cell | None], ...] = (
    ("requests", lambda one: one.requests),
    ("  failed", lambda one: one.failed),
    ("time to first token, ms", None),
    ("  p50", lambda one: one.first_token_ms.p50),
    ("  p90", lambda one: one.first_token_ms.p90),
    ("  p99", lambda one: one.first_token_ms.p99),
    ("between tokens, ms", None),
    ("  p50", lambda one: one.between_tokens_ms.p50),
    ("  p99", lambda one: one.between_tokens_ms.p99),
    ("whole answer, ms", None),
    ("  p50", lambda one: one.answer_ms.p50),
    ("  p99", lambda one: one.answer_ms.p99),
    ("output tokens/s", None),
    ("  all streams", lambda one: one.tokens_per_second),
    ("  one stream, p50", lambda one: one.tokens_per_second_of_a_stream),
    ("requests/s", lambda one: one.requests_per_second),
    ("output tokens an answer", lambda one: one.output_tokens_an_answer),
)


def table(figures: Sequence[Figures]) -> str:
    """One server: its levels side by side. Several: a table for each level, the servers side by side."""
    if len({one.url for one in figures}) == 1:
        first = figures[0]
        title = f"{first.url} ({first.api}, {first.model})"
        columns = [(str(_level(one)), one) for one in figures]
        blocks = [_blocks(title, columns)]
    else:
        levels = groupby(figures, key=lambda one: str(_level(one)))
        blocks = [_blocks(level, _named(list(ones))) for level, ones in levels]
    return "\n\n".join([*(block for some in blocks for block in some), *_notes(figures)])


def _level(one: Figures) -> Level:
    return Level(one.concurrency, one.rate)


def _named(figures: list[Figures]) -> list[tuple[str, Figures]]:
    """With the API where they differ in it."""
    apis = len({one.api for one in figures}) > 1
    return [(f"{_place(one.url)} {one.api}" if apis else _place(one.url), one) for one in figures]


def _place(url: str) -> str:
    return url.partition("://")[2]


def _blocks(title: str, columns: list[tuple[str, Figures]]) -> list[str]:
    """No wider than a terminal, for most names."""
    pieces = [columns[at : at + MOST_COLUMNS] for at in range(0, len(columns), MOST_COLUMNS)]
    return [f"{title}\n\n{_block(piece)}" for piece in pieces]


def _block(columns: list[tuple[str, Figures]]) -> str:
    side = max(len(name) for name, _ in ROWS)
    widths = [max(len(name), LEAST_WIDTH) + GAP for name, _ in columns]
    lines = [" " * side + "".join(name.rjust(width) for (name, _), width in zip(columns, widths, strict=True))]
    for name, cell in ROWS:
        cells = [_cell(cell, one).rjust(width) for (_, one), width in zip(columns, widths, strict=True)]
        lines.append((name.ljust(side) + "".join(cells)).rstrip())
    return "\n".join(lines)


def _cell(cell: Cell | None, one: Figures) -> str:
    if cell is None:
        return ""
    value = cell(one)
    return f"{value:,}" if isinstance(value, int) else _ms(value)


def _notes(figures: Sequence[Figures]) -> list[str]:
    notes = [*_failures(figures), *_counting(figures), *_pieces(figures), *_cpu(figures)]
    return ["\n".join(notes)] if notes else []


def _where(one: Figures) -> str:
    return f"{_place(one.url)}, {_level(one)}"


def _failures(figures: Sequence[Figures]) -> list[str]:
    return [
        f"{_where(one)}: {failure.count} × {failure.kind}, such as: {failure.example}"
        for one in figures
        for failure in one.failures
    ]


def _counting(figures: Sequence[Figures]) -> list[str]:
    ways = {one.counted_by for one in figures if one.requests > one.failed}
    if not ways:
        return []
    if ways == {"usage"}:
        return ["Tokens are as the server counts them."]
    if ways == {"events"}:
        return ["Tokens are counted by events: the server does not tell their number."]
    return ["Tokens are as the server counts them, and counted by events where it does not."]


def _pieces(figures: Sequence[Figures]) -> list[str]:
    return [
        f"{_where(one)}: an event has {one.tokens_an_event:.1f} tokens; «between tokens» is between events."
        for one in figures
        if one.tokens_an_event is not None and one.tokens_an_event > LOUD_PIECES
    ]


def _cpu(figures: Sequence[Figures]) -> list[str]:
    return [
        f"{_where(one)}: measuring took {one.client_cpu:.0%} of a core, and may have been what was measured."
        for one in figures
        if one.client_cpu > LOUD_CPU
    ]
