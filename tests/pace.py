"""How slow the machine is, beside the one on which promises in milliseconds were measured, and how soon something is.

A busy machine makes everything later and nothing sooner, so that the soonest of a few tries tells what was promised.
"""

import json
from collections.abc import Awaitable, Callable

from tests.cpu import spent_on

TRIES = 5
_USUAL = 0.012  # CPU seconds that the piece of work took there, with others around it
_TEXT = json.dumps({f"k{number}": number for number in range(20_000)})


def slowness() -> float:
    """How many times as long as there a piece of work takes here and now; never less than 1."""
    return max(1.0, spent_on(_piece) / _USUAL)


def _piece() -> None:
    assert all(name.encode() for name in json.loads(_TEXT))


async def soonest(measure: Callable[[], Awaitable[float]], enough: float) -> float:
    """The least of a few tries; of no more than it takes to have less than `enough`."""
    least = await measure()
    for _ in range(TRIES - 1):
        if least < enough:
            break
        least = min(least, await measure())
    return least
