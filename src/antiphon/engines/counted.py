"""How many tokens an engine says that it read or said, as far as that can be believed: metrics are made of it."""

MOST_TOKENS = 2**40


def believed(number: int | None) -> int:
    return min(max(number or 0, 0), MOST_TOKENS)
