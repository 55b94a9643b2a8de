"""Measurements and the figures computed from them. Pure functions in bounded memory.

Percentiles of whole requests are exact. The times between tokens are too many to keep, so they are counted in a
histogram.
"""

from array import array
from collections.abc import Callable, Sequence
from math import exp, log
from typing import Literal

from msgspec import Struct

BUCKET_WIDTH = log(1.01)  # buckets grow by one percent
MIN_SECONDS = 1e-6
BUCKETS = int(log(1e10) / BUCKET_WIDTH) + 1  # up to about three hours
MAX_FAILURE_KINDS = 20
OTHER_FAILURES = "other failures"
MS_PER_SECOND = 1000.0

TokenCountSource = Literal["usage", "events", "both"]


class AnswerTiming(Struct, kw_only=True):
    """Times of one successful answer, in seconds of one clock; `due` is when its request should have been sent."""

    due: float
    first_token: float  # arrival of the first token
    last_token: float  # arrival of the last token
    ended: float
    content_events: int  # events with a part of the answer
    gaps: Sequence[float] = ()  # seconds between content events that did not arrive together
    input_tokens: int | None = None  # as reported by the server; None if it does not
    output_tokens: int | None = None


class FailureCount(Struct):
    """One kind of failure, and the first message of it."""

    kind: str
    count: int
    example: str


class Percentiles(Struct, frozen=True):
    """Percentiles and the maximum; None without values."""

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
    counted_by: TokenCountSource
    client_cpu: float  # share of one core used by this process


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return a percentile by linear interpolation, or None without values."""
    if not values:
        return None
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def _to_percentiles(percentile_of: Callable[[float], float | None], maximum: float) -> Percentiles:
    """Return percentiles in milliseconds, from a function and a maximum in seconds."""
    p50, p90, p99 = ((percentile_of(share) or 0.0) * MS_PER_SECOND for share in (0.5, 0.9, 0.99))
    return Percentiles(p50=p50, p90=p90, p99=p99, most=maximum * MS_PER_SECOND)


def compute_percentiles(values: Sequence[float]) -> Percentiles:
    """Return the percentiles, in milliseconds, of values in seconds."""
    if not values:
        return Percentiles()
    return _to_percentiles(lambda share: percentile(values, share), max(values))


class GapHistogram:
    """Histogram of the times between tokens, accurate to one percent."""

    def __init__(self) -> None:
        self._zeros = 0  # tokens that arrived together
        self._counts = [0] * BUCKETS
        self._maximum = 0.0

    def add(self, seconds: float) -> None:
        if seconds <= MIN_SECONDS:
            self._zeros += 1
            return
        self._counts[min(int(log(seconds / MIN_SECONDS) / BUCKET_WIDTH), BUCKETS - 1)] += 1
        if seconds > self._maximum:
            self._maximum = seconds

    def add_zeros(self, count: int) -> None:
        """Count tokens that arrived together with the previous one."""
        self._zeros += count

    def percentile(self, share: float) -> float | None:
        rank = share * (self._zeros + sum(self._counts))
        if not rank:
            return None
        seen = self._zeros
        if seen >= rank:
            return 0.0
        for bucket, count in enumerate(self._counts):
            seen += count
            if seen >= rank:
                return min(MIN_SECONDS * exp((bucket + 0.5) * BUCKET_WIDTH), self._maximum)
        return self._maximum

    def to_percentiles(self) -> Percentiles:
        return _to_percentiles(self.percentile, self._maximum) if self._zeros or self._maximum else Percentiles()


class Measurement:
    """Everything measured of one server at one level of load."""

    def __init__(self) -> None:
        self._gaps = GapHistogram()
        self.requests = 0
        self.failures: dict[str, FailureCount] = {}
        self.seconds = 0.0  # duration of the measurement
        self.cpu_seconds = 0.0  # CPU time of this process meanwhile
        self._first_token_times = array("d")
        self._durations = array("d")
        self._stream_rates = array("d")
        self._input_tokens = self._output_tokens = 0
        self._content_events = 0
        self._with_usage = 0  # answers with token counts of the server

    @property
    def failed(self) -> int:
        return sum(failure.count for failure in self.failures.values())

    def record_answer(self, answer: AnswerTiming) -> None:
        self.requests += 1
        self._first_token_times.append(answer.first_token - answer.due)
        self._durations.append(answer.ended - answer.due)
        tokens = answer.content_events if answer.output_tokens is None else answer.output_tokens
        if tokens > 1 and answer.last_token > answer.first_token:
            self._stream_rates.append((tokens - 1) / (answer.last_token - answer.first_token))
        for gap in answer.gaps:
            self._gaps.add(gap)
        self._gaps.add_zeros(answer.content_events - 1 - len(answer.gaps))
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
            url=url,
            api=api,
            model=model,
            concurrency=concurrency,
            rate=rate,
            requests=self.requests,
            failed=self.failed,
            failures=sorted(self.failures.values(), key=lambda failure: -failure.count),
            seconds=self.seconds,
            first_token_ms=compute_percentiles(self._first_token_times),
            between_tokens_ms=self._gaps.to_percentiles(),
            answer_ms=compute_percentiles(self._durations),
            tokens_per_second=_ratio(self._output_tokens, self.seconds) or 0.0,
            tokens_per_second_of_a_stream=percentile(self._stream_rates, 0.5),
            requests_per_second=_ratio(answers, self.seconds) or 0.0,
            input_tokens=self._input_tokens,
            output_tokens=self._output_tokens,
            output_tokens_an_answer=_ratio(self._output_tokens, answers),
            tokens_an_event=_ratio(self._output_tokens, self._content_events),
            counted_by=self._counted_by(answers),
            client_cpu=_ratio(self.cpu_seconds, self.seconds) or 0.0,
        )

    def _counted_by(self, answers: int) -> TokenCountSource:
        if self._with_usage == answers:
            return "usage"
        return "both" if self._with_usage else "events"


def _ratio(part: float, total: float) -> float | None:
    return part / total if total else None
