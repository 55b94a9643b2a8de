"""The plan of a measurement: levels of load, rounds and prompts. Pure."""

from collections.abc import Callable, Iterator
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
        """Return the number of short requests before a round: one per connection, or `MAX_RATE_WARMUPS` at a rate."""
        if self.warmup is not None:
            return self.warmup
        return level.concurrency if level.rate is None else min(level.concurrency, MAX_RATE_WARMUPS)

    def make_prompt(self, number: int) -> str:
        """Return the configured prompt, or a generated one of `prompt_tokens` words, which begins with the number so
        that a server's prefix cache does not apply.
        """
        if self.prompt_tokens is None:
            return self.prompt
        words = _PROMPT_VOCABULARY * (self.prompt_tokens // len(_PROMPT_VOCABULARY) + 1)
        return " ".join((str(number), *words[: self.prompt_tokens - 1]))

    def add_extra_fields(self, body: dict[str, Any]) -> dict[str, Any]:
        """Add the extra fields to a request body; null removes a field."""
        return {name: value for name, value in {**body, **self.extra}.items() if value is not None}

    def count_requests(self, turn: int) -> int:
        """Return the number of requests of one round, split as evenly as possible over the rounds."""
        if self.requests is None:
            return MAX_REQUESTS
        return self.requests // self.rounds + (turn < self.requests % self.rounds)

    def make_due_times(self, level: LoadLevel, turn: int, clock: Callable[[], float]) -> Iterator[float]:
        """Yield when the requests of a round are due: immediately, or at a fixed rate independent of pending ones."""
        start, seconds = clock(), None if self.seconds is None else self.seconds / self.rounds
        for number in range(self.count_requests(turn)):
            due = clock() if level.rate is None else start + number / level.rate
            if seconds is not None and due >= start + seconds:
                return
            yield due


def make_levels(concurrencies: list[int], rates: list[float]) -> list[LoadLevel]:
    if not rates:
        return [LoadLevel(concurrency) for concurrency in concurrencies or [1]]
    return [
        LoadLevel(concurrency, rate) for rate in rates for concurrency in concurrencies or [DEFAULT_RATE_CONCURRENCY]
    ]
