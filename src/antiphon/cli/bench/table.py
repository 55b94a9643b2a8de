"""The output of a benchmark: a progress line, and a table with one column per server or level and notes below it."""

import asyncio
import shutil
import sys
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from time import monotonic

from antiphon.cli.bench.figures import Figures, Measurement
from antiphon.cli.bench.plan import LoadLevel

Cell = Callable[[Figures], float | None]
COLUMN_GAP = 2
MIN_COLUMN_WIDTH = 12
MAX_COLUMNS = 6
CPU_NOTE_THRESHOLD = 0.5
EVENT_TOKENS_NOTE_THRESHOLD = 1.1
REDRAW_SECONDS = 0.2
RATE_WINDOW_SECONDS = 2.0  # window of the current token rate

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
COUNT_NOTES = {
    frozenset({"usage"}): "Token counts are reported by the server.",
    frozenset({"events"}): "Token counts are numbers of events: the server does not report any.",
}
MIXED_COUNT_NOTE = "Token counts are reported by the server, or numbers of events where it reports none."


async def show_progress(render: Callable[[float], str], count_events: Callable[[], int]) -> None:
    """Redraw a line in place until cancelled. `render` is called with the content events per second."""
    samples: deque[tuple[float, int]] = deque(maxlen=round(RATE_WINDOW_SECONDS / REDRAW_SECONDS))
    try:
        while True:
            samples.append((monotonic(), count_events()))
            (since, before), (now, events) = samples[0], samples[-1]
            line = render((events - before) / (now - since) if now > since else 0.0)
            sys.stderr.write(f"\r{line[: shutil.get_terminal_size().columns - 1]}\x1b[K")
            sys.stderr.flush()
            await asyncio.sleep(REDRAW_SECONDS)
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def render_progress(title: str, measurement: Measurement, total: int | None, rate: float) -> str:
    done = f"{measurement.requests}/{total} done" if total is not None else f"{measurement.requests} done"
    failed = f" · {measurement.failed} failed" if measurement.failed else ""
    return f"{title} · {done} · {rate:,.0f} tokens/s now{failed}"


def render_table(figures: Sequence[Figures]) -> str:
    """Render the results: the levels of one server side by side, or for each level the servers side by side."""
    if len({result.url for result in figures}) == 1:
        first = figures[0]
        title = f"{first.url} ({first.api}, {first.model})"
        blocks = _render_blocks(title, [(_name_level(result), result) for result in figures])
    else:
        by_level = [(level, list(results)) for level, results in groupby(figures, key=_name_level)]
        blocks = [block for level, results in by_level for block in _render_blocks(level, _label_columns(results))]
    notes = "\n".join(_make_notes(figures))
    return "\n\n".join([*blocks, notes] if notes else blocks)


def _name_level(result: Figures) -> str:
    return str(LoadLevel(result.concurrency, result.rate))


def _label_columns(figures: list[Figures]) -> list[tuple[str, Figures]]:
    """Label the columns by server, and by API where it differs."""
    apis_differ = len({result.api for result in figures}) > 1
    return [(_strip_scheme(result.url) + (f" {result.api}" if apis_differ else ""), result) for result in figures]


def _strip_scheme(url: str) -> str:
    return url.partition("://")[2]


def _render_blocks(title: str, columns: list[tuple[str, Figures]]) -> list[str]:
    """Split the columns into blocks that fit into a terminal, for names of usual length."""
    groups = [columns[at : at + MAX_COLUMNS] for at in range(0, len(columns), MAX_COLUMNS)]
    return [f"{title}\n\n{_render_block(group)}" for group in groups]


def _render_block(columns: list[tuple[str, Figures]]) -> str:
    label_width = max(len(name) for name, _ in ROWS)
    widths = [max(len(name), MIN_COLUMN_WIDTH) + COLUMN_GAP for name, _ in columns]
    lines = [("", *(name for name, _ in columns))]
    lines += [(name, *(_render_cell(cell, result) for _, result in columns)) for name, cell in ROWS]
    return "\n".join(
        (name.ljust(label_width) + "".join(map(str.rjust, cells, widths))).rstrip() for name, *cells in lines
    )


def _render_cell(cell: Cell | None, result: Figures) -> str:
    """Render a count, or three significant digits; from 100 on a whole number."""
    if cell is None:
        return ""
    if (value := cell(result)) is None:
        return "–"
    return f"{value:.3g}" if value < 100 and not isinstance(value, int) else f"{value:,.0f}"


def _make_notes(figures: Sequence[Figures]) -> list[str]:
    names = [f"{_strip_scheme(result.url)}, {_name_level(result)}" for result in figures]
    named = list(zip(names, figures, strict=True))
    sources = frozenset(result.counted_by for result in figures if result.requests > result.failed)
    return [
        *(
            f"{name}: {failure.count} × {failure.kind}, for example: {failure.example}"
            for name, result in named
            for failure in result.failures
        ),
        *([COUNT_NOTES.get(sources, MIXED_COUNT_NOTE)] if sources else []),
        *(
            f"{name}: {result.tokens_an_event:.1f} tokens per event; «between tokens» is between events."
            for name, result in named
            if (result.tokens_an_event or 0.0) > EVENT_TOKENS_NOTE_THRESHOLD
        ),
        *(
            f"{name}: the client used {result.client_cpu:.0%} of a core and may have limited the result."
            for name, result in named
            if result.client_cpu > CPU_NOTE_THRESHOLD
        ),
    ]
