"""Bodies are decoded where they arrive, or in a thread if there is much of them, so that others need not wait."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from antiphon.limits import Limits

T = TypeVar("T")

AT_ONCE = 256 * 1024  # bytes; the densest body takes 50 µs a KiB


async def decoded(body: bytes, decode: Callable[[bytes, Limits], T], limits: Limits) -> T:
    if len(body) <= AT_ONCE:
        return decode(body, limits)
    return await asyncio.to_thread(decode, body, limits)
