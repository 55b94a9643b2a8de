"""What is to be measured: which load, in how many rounds, with which prompts. Pure."""

from typing import Any

from msgspec import Struct

DEFAULT_PROMPT = "Tell me a long story about the sea."
AT_ONCE_AT_A_RATE = 512  # where a rate is given and no concurrency
WARMUPS_AT_A_RATE = 8
MOST_REQUESTS = 1_000_000
# Words that are one token in about every vocabulary.
_WORDS = (
    "time", "way", "day", "man", "world", "life", "hand", "part", "child", "eye",
    "woman", "place", "work", "week", "case", "point", "home", "water", "room", "area",
)  # fmt: skip


class Level(Struct, frozen=True):
    """A load: requests at once, and if there is a rate, how many are begun in a second, whoever is still waiting."""

    concurrency: int
    rate: float | None = None

    def __str__(self) -> str:
        return f"{self.concurrency} at once" if self.rate is None else f"{self.rate:g} a second"


class Plan(Struct, frozen=True, kw_only=True):
    levels: list[Level]
    requests: int | None = None  # for each server and level
    seconds: float | None = None
    rounds: int = 1  # of each level; the servers take turns
    warmup: int | None = None
    model: str | None = None
    prompt: str = DEFAULT_PROMPT
    prompt_tokens: int | None = None
    max_tokens: int = 128
    timeout: float = 300.0
    extra: dict[str, Any] = {}

    @property
    def most_at_once(self) -> int:
        return max(level.concurrency for level in self.levels)

    def warmups(self, level: Level) -> int:
        """Short requests before each round: one for each connection, where it is known how many there will be."""
        if self.warmup is not None:
            return self.warmup
        return level.concurrency if level.rate is None else min(level.concurrency, WARMUPS_AT_A_RATE)

    def prompt_of(self, number: int) -> str:
        """The one that was given; or so many words, of which no two requests have the first ones in common: what a
        server has in its cache of one prompt is of no use for the next."""
        if self.prompt_tokens is None:
            return self.prompt
        begin = [_WORDS[digit] for digit in _digits(number)][: self.prompt_tokens]
        rest = self.prompt_tokens - len(begin)
        return " ".join((*begin, *(_WORDS * (rest // len(_WORDS) + 1))[:rest]))

    def mixed(self, body: dict[str, Any]) -> dict[str, Any]:
        """With the fields that were given; null leaves one out."""
        return {name: value for name, value in {**body, **self.extra}.items() if value is not None}

    def quota(self, level: Level, turn: int, begun: float) -> "Quota":
        """A round's share of the whole."""
        requests = None if self.requests is None else _share(self.requests, self.rounds, turn)
        seconds = None if self.seconds is None else self.seconds / self.rounds
        return Quota(begun, level.rate, MOST_REQUESTS if requests is None else requests, seconds)


class Quota:
    """When the next request is due, if any is: as soon as may be, or at a steady pace that waits for nobody."""

    def __init__(self, begun: float, rate: float | None, requests: int, seconds: float | None) -> None:
        self._begun = begun
        self._rate = rate
        self._end = None if seconds is None else begun + seconds
        self._taken = 0
        self.requests = requests

    def next(self, now: float) -> float | None:
        due = now if self._rate is None else self._begun + self._taken / self._rate
        if self._taken >= self.requests or (self._end is not None and due >= self._end):
            return None
        self._taken += 1
        return due


def levels(concurrencies: list[int], rates: list[float]) -> list[Level]:
    if not rates:
        return [Level(concurrency) for concurrency in concurrencies or [1]]
    return [Level(concurrency, rate) for rate in rates for concurrency in concurrencies or [AT_ONCE_AT_A_RATE]]


def _share(whole: int, parts: int, number: int) -> int:
    return whole // parts + (number < whole % parts)


def _digits(number: int) -> list[int]:
    """In the base of the number of words, the fastest first: two numbers differ in the first one of them already."""
    digits = [number % len(_WORDS)]
    while number := number // len(_WORDS):
        digits.append(number % len(_WORDS))
    return [*digits, *[0] * (6 - len(digits))]
