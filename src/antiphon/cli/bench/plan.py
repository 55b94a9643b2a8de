"""The plan of a measurement: levels of load, rounds and prompts. Pure."""

from typing import Any

from msgspec import Struct

DEFAULT_PROMPT = "Tell me a long story about the sea."
DEFAULT_RATE_CONCURRENCY = 512  # concurrency limit if only a rate is set
MAX_RATE_WARMUPS = 8
MAX_REQUESTS = 1_000_000
# Words that are a single token in nearly every vocabulary.
_PROMPT_VOCABULARY = (
    "time", "way", "day", "man", "world", "life", "hand", "part", "child", "eye",
    "woman", "place", "work", "week", "case", "point", "home", "water", "room", "area",
)  # fmt: skip


class LoadLevel(Struct, frozen=True):
    """A level of load: the number of concurrent requests, and optionally a fixed rate of new requests per second."""

    concurrency: int
    rate: float | None = None

    def __str__(self) -> str:
        return f"{self.concurrency} at once" if self.rate is None else f"{self.rate:g} a second"


class BenchPlan(Struct, frozen=True, kw_only=True):
    """The options of a measurement."""

    levels: list[LoadLevel]
    requests: int | None = None  # per server and level
    seconds: float | None = None
    rounds: int = 1  # per level; the servers take turns
    warmup: int | None = None
    model: str | None = None
    prompt: str = DEFAULT_PROMPT
    prompt_tokens: int | None = None
    max_tokens: int = 128
    timeout: float = 300.0
    extra: dict[str, Any] = {}

    @property
    def max_concurrency(self) -> int:
        return max(level.concurrency for level in self.levels)

    def count_warmups(self, level: LoadLevel) -> int:
        """Return the number of short requests before a round: one per connection; at a rate, at most
        `MAX_RATE_WARMUPS`.
        """
        if self.warmup is not None:
            return self.warmup
        return level.concurrency if level.rate is None else min(level.concurrency, MAX_RATE_WARMUPS)

    def make_prompt(self, number: int) -> str:
        """Return the configured prompt, or a generated one of `prompt_tokens` words.

        Generated prompts differ in their first words, so that a server's prefix cache does not apply.
        """
        if self.prompt_tokens is None:
            return self.prompt
        prefix = [_PROMPT_VOCABULARY[digit] for digit in _to_digits(number)][: self.prompt_tokens]
        padding = self.prompt_tokens - len(prefix)
        return " ".join((*prefix, *(_PROMPT_VOCABULARY * (padding // len(_PROMPT_VOCABULARY) + 1))[:padding]))

    def add_extra_fields(self, body: dict[str, Any]) -> dict[str, Any]:
        """Add the extra fields to a request body; null removes a field."""
        return {name: value for name, value in {**body, **self.extra}.items() if value is not None}

    def make_quota(self, level: LoadLevel, turn: int, started: float) -> "RequestQuota":
        """Return the quota of one round of a level."""
        requests = None if self.requests is None else _split_evenly(self.requests, self.rounds, turn)
        seconds = None if self.seconds is None else self.seconds / self.rounds
        return RequestQuota(started, level.rate, MAX_REQUESTS if requests is None else requests, seconds)


class RequestQuota:
    """Determines when the next request is due: immediately, or at a fixed rate independent of pending requests."""

    def __init__(self, started: float, rate: float | None, requests: int, seconds: float | None) -> None:
        self._started = started
        self._rate = rate
        self._end = None if seconds is None else started + seconds
        self._started_count = 0
        self.requests = requests

    def next(self, now: float) -> float | None:
        """Return when the next request is due, or None if the quota is used up."""
        due = now if self._rate is None else self._started + self._started_count / self._rate
        if self._started_count >= self.requests or (self._end is not None and due >= self._end):
            return None
        self._started_count += 1
        return due


def make_levels(concurrencies: list[int], rates: list[float]) -> list[LoadLevel]:
    if not rates:
        return [LoadLevel(concurrency) for concurrency in concurrencies or [1]]
    return [
        LoadLevel(concurrency, rate) for rate in rates for concurrency in concurrencies or [DEFAULT_RATE_CONCURRENCY]
    ]


def _split_evenly(total: int, parts: int, number: int) -> int:
    """Return one part of a total that is split as evenly as possible."""
    return total // parts + (number < total % parts)


def _to_digits(number: int) -> list[int]:
    """Return the digits of a number in base `len(_PROMPT_VOCABULARY)`, least significant first, padded to at least six.

    Consecutive numbers differ in their first digit.
    """
    digits = [number % len(_PROMPT_VOCABULARY)]
    while number := number // len(_PROMPT_VOCABULARY):
        digits.append(number % len(_PROMPT_VOCABULARY))
    return [*digits, *[0] * (6 - len(digits))]
