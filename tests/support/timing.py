"""Latency measurements on busy machines: load only adds latency, so the fastest of several attempts is the reliable
one.
"""

from collections.abc import Awaitable, Callable

ATTEMPTS = 5


async def measure_fastest(measure: Callable[[], Awaitable[float]], threshold: float) -> float:
    """Return the fastest of several attempts; stop at the first one below `threshold`."""
    fastest = await measure()
    for _ in range(ATTEMPTS - 1):
        if fastest < threshold:
            break
        fastest = min(fastest, await measure())
    return fastest
