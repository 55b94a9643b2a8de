"""How soon something is: a busy machine makes it later and never sooner, so that the soonest of a few tries tells."""

from collections.abc import Awaitable, Callable

TRIES = 5


async def soonest(measure: Callable[[], Awaitable[float]], enough: float) -> float:
    """The least of a few tries; of no more than it takes to have less than `enough`."""
    least = await measure()
    for _ in range(TRIES - 1):
        if least < enough:
            break
        least = min(least, await measure())
    return least
