"""Measurements and the figures computed from them, in bounded memory.

Percentiles of whole requests are exact. The times between tokens may be too many to keep; then a sample is kept.
"""

from array import array
from collections.abc import Iterable
from itertools import chain, repeat
from random import randrange
from statistics import median, quantiles
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


def compute_percentiles(values: "array[float]") -> Percentiles:
    """Return the percentiles of values in seconds, by linear interpolation."""
    if not values:
        return Percentiles()
    at_least_two = values if len(values) > 1 else values * 2  # `quantiles` does not accept one value
    cuts = quantiles(at_least_two, n=100, method="inclusive")
    return Percentiles(cuts[49] * 1000, cuts[89] * 1000, cuts[98] * 1000, max(values) * 1000)


class Measurement:
    """Everything measured of one server at one level of load."""

    def __init__(self) -> None:
        self.requests = 0
        self.failures: dict[str, FailureCount] = {}
        self.seconds = 0.0  # duration of the measurement
        self.cpu_seconds = 0.0  # CPU time of this process meanwhile
        self._gaps = array("d")  # times between tokens; of more than `MAX_GAPS` a random sample (reservoir sampling)
        self._gap_count = 0
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
            self._gap_count += 1
            if len(self._gaps) < MAX_GAPS:
                self._gaps.append(gap)
            elif (at := randrange(self._gap_count)) < MAX_GAPS:
                self._gaps[at] = gap
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
            between_tokens_ms=compute_percentiles(self._gaps),
            answer_ms=compute_percentiles(self._durations),
            tokens_per_second=_ratio(self._output_tokens, self.seconds) or 0.0,
            tokens_per_second_of_a_stream=median(self._stream_rates) if self._stream_rates else None,
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
