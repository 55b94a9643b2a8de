"""Large pieces of CPU-bound work run in a thread, so that they do not block the event loop."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MAX_INLINE_BYTES = 256 * 1024  # below this, starting a thread costs more than the work


async def run_sized(size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that processes `size` bytes, in a thread if they are many."""
    if size <= MAX_INLINE_BYTES:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)
