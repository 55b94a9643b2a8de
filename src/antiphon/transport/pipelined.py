"""Requests that a client sends before those ahead of them are answered.

A few are parsed and wait. The bytes behind them are held back as they came, until all of those are answered: one read
may have thousands of requests in it, and making them at once would take the time of everybody else.
"""

from typing import Final

MOST: Final = 8  # requests that wait for those before them, before no more are made of what came
_EMPTY_LINE: Final = b"\r\n\r\n"


def share(data: bytes, end: int) -> int:
    """Up to where it is parsed at once: so many requests may end between `end` and there. Each has an empty line."""
    for _ in range(MOST):
        found = data.find(_EMPTY_LINE, end)
        if found < 0:
            return len(data)
        end = found + len(_EMPTY_LINE)
    return end
