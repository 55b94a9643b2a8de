"""Work for a client, as long as that is there: who leaves cancels the task that works for it, which sees ClientGone."""

import asyncio
from collections.abc import Awaitable, Collection
from types import TracebackType
from typing import TypeVar

from antiphon.transport.http.channel import ClientGone
from antiphon.transport.http.request import Request

T = TypeVar("T")


class Attended:
    """A line that work is done for: `with line:` it is. Who has one looks out for its client from then on."""

    __slots__: Collection[str] = frozenset()  # none of its own: it is there for lines that have theirs

    _worker: asyncio.Task[None] | None  # while it works
    _cancelled: asyncio.Task[None] | None  # if its client has left meanwhile

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker = None
        if self._cancelled is not None:
            cancelled, self._cancelled = self._cancelled, None
            if cancelled.uncancel() == 0 and kind is asyncio.CancelledError:
                raise ClientGone from error

    def _cancel(self) -> None:
        """What is done for who has left."""
        if self._worker is not None:
            self._cancelled, self._worker = self._worker, None
            self._cancelled.cancel()


async def attended(request: Request, work: Awaitable[T]) -> T:
    """Raises ClientGone if the client leaves before it is done."""
    with request.line:
        return await work
