"""How many tokens an engine says that it read or said, as far as that can be believed: metrics are made of it."""

MOST_TOKENS = 2**40


def believed(number: int | None) -> int:
    if number is None or number <= 0:
        return 0
    return number if number < MOST_TOKENS else MOST_TOKENS
