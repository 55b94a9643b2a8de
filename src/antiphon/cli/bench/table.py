"""Renders figures as a table with one row per figure and one column per server or level, and notes below it."""

from collections.abc import Callable, Sequence
from itertools import groupby

from antiphon.cli.bench.figures import Figures
from antiphon.cli.bench.plan import LoadLevel

Cell = Callable[[Figures], float | None]
COLUMN_GAP = 2
MIN_COLUMN_WIDTH = 12
MAX_COLUMNS = 6
CPU_NOTE_THRESHOLD = 0.5
EVENT_TOKENS_NOTE_THRESHOLD = 1.1


def _format_number(value: float | None) -> str:
    """Render three significant digits; from 100 on a whole number."""
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
    ("output tokens/answer", lambda one: one.output_tokens_an_answer),
)


def render_table(figures: Sequence[Figures]) -> str:
    """Render the results: one server with its levels side by side, or one table per level with the servers side by
    side.
    """
    if len({result.url for result in figures}) == 1:
        first = figures[0]
        title = f"{first.url} ({first.api}, {first.model})"
        columns = [(str(_to_level(result)), result) for result in figures]
        blocks = [_render_blocks(title, columns)]
    else:
        levels = groupby(figures, key=lambda result: str(_to_level(result)))
        blocks = [_render_blocks(level, _label_columns(list(results))) for level, results in levels]
    return "\n\n".join([*(block for group in blocks for block in group), *_render_notes(figures)])


def _to_level(result: Figures) -> LoadLevel:
    return LoadLevel(result.concurrency, result.rate)


def _label_columns(figures: list[Figures]) -> list[tuple[str, Figures]]:
    """Label the columns by server, and by API where it differs."""
    apis_differ = len({result.api for result in figures}) > 1
    return [
        (f"{_strip_scheme(result.url)} {result.api}" if apis_differ else _strip_scheme(result.url), result)
        for result in figures
    ]


def _strip_scheme(url: str) -> str:
    return url.partition("://")[2]


def _render_blocks(title: str, columns: list[tuple[str, Figures]]) -> list[str]:
    """Split the columns into blocks that fit into a terminal, for names of usual length."""
    groups = [columns[at : at + MAX_COLUMNS] for at in range(0, len(columns), MAX_COLUMNS)]
    return [f"{title}\n\n{_render_block(group)}" for group in groups]


def _render_block(columns: list[tuple[str, Figures]]) -> str:
    label_width = max(len(name) for name, _ in ROWS)
    widths = [max(len(name), MIN_COLUMN_WIDTH) + COLUMN_GAP for name, _ in columns]
    lines = [" " * label_width + "".join(name.rjust(width) for (name, _), width in zip(columns, widths, strict=True))]
    for name, cell in ROWS:
        cells = [_render_cell(cell, result).rjust(width) for (_, result), width in zip(columns, widths, strict=True)]
        lines.append((name.ljust(label_width) + "".join(cells)).rstrip())
    return "\n".join(lines)


def _render_cell(cell: Cell | None, result: Figures) -> str:
    if cell is None:
        return ""
    value = cell(result)
    return f"{value:,}" if isinstance(value, int) else _format_number(value)


def _render_notes(figures: Sequence[Figures]) -> list[str]:
    notes = [*_failure_notes(figures), *_token_count_notes(figures), *_event_notes(figures), *_cpu_notes(figures)]
    return ["\n".join(notes)] if notes else []


def _name_result(result: Figures) -> str:
    return f"{_strip_scheme(result.url)}, {_to_level(result)}"


def _failure_notes(figures: Sequence[Figures]) -> list[str]:
    return [
        f"{_name_result(result)}: {failure.count} × {failure.kind}, for example: {failure.example}"
        for result in figures
        for failure in result.failures
    ]


def _token_count_notes(figures: Sequence[Figures]) -> list[str]:
    sources = {result.counted_by for result in figures if result.requests > result.failed}
    if not sources:
        return []
    if sources == {"usage"}:
        return ["Token counts are reported by the server."]
    if sources == {"events"}:
        return ["Token counts are numbers of events: the server does not report any."]
    return ["Token counts are reported by the server, or numbers of events where it reports none."]


def _event_notes(figures: Sequence[Figures]) -> list[str]:
    return [
        f"{_name_result(result)}: {result.tokens_an_event:.1f} tokens per event; «between tokens» is between events."
        for result in figures
        if result.tokens_an_event is not None and result.tokens_an_event > EVENT_TOKENS_NOTE_THRESHOLD
    ]


def _cpu_notes(figures: Sequence[Figures]) -> list[str]:
    return [
        f"{_name_result(result)}: the client used {result.client_cpu:.0%} of a core and may have limited the result."
        for result in figures
        if result.client_cpu > CPU_NOTE_THRESHOLD
    ]
