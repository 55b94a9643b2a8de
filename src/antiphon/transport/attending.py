"""Work that ends in one reply, as long as its client is there: who leaves cancels it."""

from collections.abc import Awaitable
from typing import Final, TypeVar

from antiphon.transport.http import Request
from antiphon.transport.listener import Listener

T = TypeVar("T")


class _Silent:
    """There is no stream that could be kept alive."""

    waits = False


_SILENT: Final = _Silent()


async def attended(request: Request, work: Awaitable[T]) -> T:
    """Raises ClientGone if the client leaves before it is done."""
    async with Listener(request, _SILENT, 0.0):
        return await work
