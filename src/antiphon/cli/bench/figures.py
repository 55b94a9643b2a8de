"""What was measured, and the figures made of it: pure, and of bounded size however long it takes.

Percentiles of whole requests are exact. Between tokens there are too many moments to keep: they are counted in buckets.

Figures as text for people: what was measured down the side, one column for each server or level. Pure.
"""

from array import array
from collections.abc import Callable, Sequence
from itertools import groupby
from math import exp, log
from typing import Literal

from msgspec import Struct

from antiphon.cli.bench.plan import Level

BUCKET = log(1.01)  # each bucket begins one percent above the one before
LEAST_SECONDS = 1e-6
BUCKETS = int(log(1e10) / BUCKET) + 1  # up to hours
MOST_KINDS = 20
OTHERS = "other failures"
MS = 1000.0

CountedBy = Literal["usage", "events", "both"]


class Answered(Struct, kw_only=True):
    """One answer that ended well, in seconds of one clock; `begun` is when it was due to be asked for."""

    begun: float
    first: float  # the first token came
    last: float  # the last token came
    ended: float
    pieces: int  # events with something of the answer in them
    gaps: Sequence[float] = ()  # between those that did not come together
    input_tokens: int | None = None  # as the server counts, where it does
    output_tokens: int | None = None


class Failure(Struct):
    """One kind of failure, and what was said the first time."""

    kind: str
    count: int
    example: str


class Spread(Struct, frozen=True):
    """Percentiles; None where there was nothing to measure."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    most: float | None = None


class Figures(Struct, frozen=True, kw_only=True):
    """One server at one level of load."""

    url: str
    api: str
    model: str
    concurrency: int
    rate: float | None
    requests: int
    failed: int
    failures: list[Failure]
    seconds: float
    first_token_ms: Spread
    between_tokens_ms: Spread
    answer_ms: Spread
    tokens_per_second: float
    tokens_per_second_of_a_stream: float | None  # the median
    requests_per_second: float
    input_tokens: int
    output_tokens: int
    output_tokens_an_answer: float | None
    tokens_an_event: float | None
    counted_by: CountedBy
    client_cpu: float  # share of a core that measuring took


def percentile(values: Sequence[float], share: float) -> float | None:
    """Between the two nearest of them, in proportion. None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _spread(percentile_of: Callable[[float], float | None], most: float) -> Spread:
    """In milliseconds."""
    p50, p90, p99 = ((percentile_of(share) or 0.0) * MS for share in (0.5, 0.9, 0.99))
    return Spread(p50=p50, p90=p90, p99=p99, most=most * MS)


def spread(values: Sequence[float]) -> Spread:
    if not values:
        return Spread()
    return _spread(lambda share: percentile(values, share), max(values))


class Gaps:
    """Times between tokens, counted: right to one percent."""

    def __init__(self) -> None:
        self._none = 0  # came together
        self._counts = [0] * BUCKETS
        self._most = 0.0

    def add(self, seconds: float) -> None:
        if seconds <= LEAST_SECONDS:
            self._none += 1
            return
        self._counts[min(int(log(seconds / LEAST_SECONDS) / BUCKET), BUCKETS - 1)] += 1
        if seconds > self._most:
            self._most = seconds

    def none(self, times: int) -> None:
        """Nobody waits between tokens that come together."""
        self._none += times

    def percentile(self, share: float) -> float | None:
        wanted = share * (self._none + sum(self._counts))
        if not wanted:
            return None
        passed = self._none
        if passed >= wanted:
            return 0.0
        for number, count in enumerate(self._counts):
            passed += count
            if passed >= wanted:
                return min(LEAST_SECONDS * exp((number + 0.5) * BUCKET), self._most)
        return self._most

    def spread(self) -> Spread:
        return _spread(self.percentile, self._most) if self._none or self._most else Spread()


class Tally:
    """All that was measured of one server at one level."""

    def __init__(self) -> None:
        self._gaps = Gaps()
        self.requests = 0
        self.failures: dict[str, Failure] = {}
        self.seconds = 0.0  # of measuring
        self.cpu_seconds = 0.0  # of this process meanwhile
        self._first = array("d")
        self._whole = array("d")
        self._paces = array("d")
        self._input_tokens = self._output_tokens = 0
        self._pieces = 0
        self._told = 0  # answers whose tokens the server counted

    @property
    def failed(self) -> int:
        return sum(failure.count for failure in self.failures.values())

    def answered(self, answer: Answered) -> None:
        self.requests += 1
        self._first.append(answer.first - answer.begun)
        self._whole.append(answer.ended - answer.begun)
        tokens = answer.pieces if answer.output_tokens is None else answer.output_tokens
        if tokens > 1 and answer.last > answer.first:
            self._paces.append((tokens - 1) / (answer.last - answer.first))
        for gap in answer.gaps:
            self._gaps.add(gap)
        self._gaps.none(answer.pieces - 1 - len(answer.gaps))
        self._output_tokens += tokens
        self._input_tokens += answer.input_tokens or 0
        self._pieces += answer.pieces
        self._told += answer.output_tokens is not None

    def fail(self, kind: str, example: str) -> None:
        self.requests += 1
        if kind not in self.failures and len(self.failures) >= MOST_KINDS:
            kind = OTHERS
        self.failures.setdefault(kind, Failure(kind, 0, example)).count += 1

    def figures(self, url: str, api: str, model: str, concurrency: int, rate: float | None) -> Figures:
        answers = len(self._whole)
        return Figures(
            url=url,
            api=api,
            model=model,
            concurrency=concurrency,
            rate=rate,
            requests=self.requests,
            failed=self.failed,
            failures=sorted(self.failures.values(), key=lambda failure: -failure.count),
            seconds=self.seconds,
            first_token_ms=spread(self._first),
            between_tokens_ms=self._gaps.spread(),
            answer_ms=spread(self._whole),
            tokens_per_second=_ratio(self._output_tokens, self.seconds) or 0.0,
            tokens_per_second_of_a_stream=percentile(self._paces, 0.5),
            requests_per_second=_ratio(answers, self.seconds) or 0.0,
            input_tokens=self._input_tokens,
            output_tokens=self._output_tokens,
            output_tokens_an_answer=_ratio(self._output_tokens, answers),
            tokens_an_event=_ratio(self._output_tokens, self._pieces),
            counted_by=self._counted_by(answers),
            client_cpu=_ratio(self.cpu_seconds, self.seconds) or 0.0,
        )

    def _counted_by(self, answers: int) -> CountedBy:
        if self._told == answers:
            return "usage"
        return "both" if self._told else "events"


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


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
