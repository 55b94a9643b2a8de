"""Measurements and the figures computed from them, in bounded memory.

Percentiles of whole requests are exact. The times between tokens may be too many to keep; then a sample is kept.
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from random import randrange
from typing import Literal

from msgspec import Struct, field

MAX_GAPS = 1_000_000  # 8 MB
MAX_FAILURE_KINDS = 20
OTHER_FAILURES = "other failures"


class Answer(Struct):
    """One answer as it arrives. Times are seconds of one clock."""

    due: float  # when its request should have been sent
    first_token: float = 0.0
    last_token: float = 0.0
    ended: float = 0.0
    content_events: int = 0
    gaps: "array[float]" = field(default_factory=lambda: array("d"))  # between content events that came separately
    input_tokens: int | None = None  # as reported by the server; None if it does not
    output_tokens: int | None = None
    is_complete: bool = False  # the server reported the end of the answer
    fault: str | None = None  # error message of the server

    def add(self, counts: Iterable[int], now: float) -> int:
        """Add events that arrived together, by the number of their parts with content. Returns the sum."""
        count = sum(counts)
        self.ended = now
        if count:
            if self.content_events:
                self.gaps.append(now - self.last_token)
            else:
                self.first_token = now
            self.last_token = now
            self.content_events += count
        return count


class FailureCount(Struct):
    """One kind of failure, and the first message of it."""

    kind: str
    count: int
    example: str


class Percentiles(Struct, frozen=True):
    """Percentiles and the maximum in milliseconds; None without values."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    most: float | None = None


class Figures(Struct, frozen=True, kw_only=True):
    """Results of one server at one level of load."""

    url: str
    api: str
    model: str
    concurrency: int
    rate: float | None
    requests: int
    failed: int
    failures: list[FailureCount]
    seconds: float
    first_token_ms: Percentiles
    between_tokens_ms: Percentiles
    answer_ms: Percentiles
    tokens_per_second: float
    tokens_per_second_of_a_stream: float | None  # median
    requests_per_second: float
    input_tokens: int
    output_tokens: int
    output_tokens_an_answer: float | None
    tokens_an_event: float | None
    counted_by: Literal["usage", "events", "both"]
    client_cpu: float  # share of one core used by this process


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile by linear interpolation."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def compute_percentiles(values: Sequence[float]) -> Percentiles:
    """Return the percentiles of values in seconds."""
    if not values:
        return Percentiles()
    p50, p90, p99 = (percentile(values, share) * 1000 for share in (0.5, 0.9, 0.99))
    return Percentiles(p50, p90, p99, max(values) * 1000)


class GapSample:
    """The times between tokens; of more than `MAX_GAPS` a random sample (reservoir sampling)."""

    def __init__(self) -> None:
        self.values = array("d")
        self._count = 0

    def add(self, seconds: float) -> None:
        self._count += 1
        if len(self.values) < MAX_GAPS:
            self.values.append(seconds)
        elif (at := randrange(self._count)) < MAX_GAPS:
            self.values[at] = seconds


class Measurement:
    """Everything measured of one server at one level of load."""

    def __init__(self) -> None:
        self.requests = 0
        self.failures: dict[str, FailureCount] = {}
        self.seconds = 0.0  # duration of the measurement
        self.cpu_seconds = 0.0  # CPU time of this process meanwhile
        self._gaps = GapSample()
        self._first_token_times = array("d")
        self._durations = array("d")
        self._stream_rates = array("d")
        self._input_tokens = self._output_tokens = self._content_events = 0
        self._with_usage = 0  # answers with token counts of the server

    @property
    def failed(self) -> int:
        return sum(failure.count for failure in self.failures.values())

    def record_answer(self, answer: Answer) -> None:
        self.requests += 1
        self._first_token_times.append(answer.first_token - answer.due)
        self._durations.append(answer.ended - answer.due)
        tokens = answer.content_events if answer.output_tokens is None else answer.output_tokens
        if tokens > 1 and answer.last_token > answer.first_token:
            self._stream_rates.append((tokens - 1) / (answer.last_token - answer.first_token))
        together = answer.content_events - 1 - len(answer.gaps)  # arrived with the previous one
        for gap in chain(answer.gaps, repeat(0.0, together)):
            self._gaps.add(gap)
        self._output_tokens += tokens
        self._input_tokens += answer.input_tokens or 0
        self._content_events += answer.content_events
        self._with_usage += answer.output_tokens is not None

    def record_failure(self, kind: str, example: str) -> None:
        self.requests += 1
        if kind not in self.failures and len(self.failures) >= MAX_FAILURE_KINDS:
            kind = OTHER_FAILURES
        self.failures.setdefault(kind, FailureCount(kind, 0, example)).count += 1

    def to_figures(self, url: str, api: str, model: str, concurrency: int, rate: float | None) -> Figures:
        answers = len(self._durations)
        return Figures(
            url=url, api=api, model=model, concurrency=concurrency, rate=rate,
            requests=self.requests,
            failed=self.failed,
            failures=sorted(self.failures.values(), key=lambda failure: -failure.count),
            seconds=self.seconds,
            first_token_ms=compute_percentiles(self._first_token_times),
            between_tokens_ms=compute_percentiles(self._gaps.values),
            answer_ms=compute_percentiles(self._durations),
            tokens_per_second=_ratio(self._output_tokens, self.seconds) or 0.0,
            tokens_per_second_of_a_stream=percentile(self._stream_rates, 0.5) if self._stream_rates else None,
            requests_per_second=_ratio(answers, self.seconds) or 0.0,
            input_tokens=self._input_tokens,
            output_tokens=self._output_tokens,
            output_tokens_an_answer=_ratio(self._output_tokens, answers),
            tokens_an_event=_ratio(self._output_tokens, self._content_events),
            counted_by="usage" if self._with_usage == answers else "both" if self._with_usage else "events",
            client_cpu=_ratio(self.cpu_seconds, self.seconds) or 0.0,
        )  # fmt: skip


def _ratio(part: float, total: float) -> float | None:
    return part / total if total else None
