"""Decodes request bodies: large ones in a thread, so that they do not block the event loop."""

import asyncio
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from antiphon.limits import Limits

P = ParamSpec("P")
T = TypeVar("T")

INLINE_DECODE_BYTES = 640 * 1024  # larger bodies are decoded in a thread; the densest body takes 50 µs per KiB


async def decode_body(
    body: bytes, decode: Callable[Concatenate[bytes, Limits, P], T], limits: Limits, *args: P.args, **kwargs: P.kwargs
) -> T:
    if len(body) <= INLINE_DECODE_BYTES:
        return decode(body, limits, *args, **kwargs)
    return await asyncio.to_thread(decode, body, limits, *args, **kwargs)
