"""Bounds for numbers that engines report, which may be missing or anything, and limits that may be missing."""

MAX_TOKEN_COUNT = 2**40
MIN_LOGPROB = -9999.0  # OpenAI's value for a very unlikely token


def clamp_token_count(number: int | None) -> int:
    """Bound a token count that an engine reported, because metrics add it up: missing or negative counts become 0."""
    if number is None or number <= 0:
        return 0
    return number if number < MAX_TOKEN_COUNT else MAX_TOKEN_COUNT


def clamp_logprob(logprob: float | None) -> float:
    """Bound a log probability that an engine reported: one that is missing becomes the lowest value."""
    return MIN_LOGPROB if logprob is None else max(logprob, MIN_LOGPROB)


def min_limit(one: int | None, other: int | None) -> int | None:
    """Return the lower of two limits. None is no limit."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
