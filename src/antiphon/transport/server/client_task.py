"""Tasks that serve a connected client: a disconnect cancels the task, and the task sees ClientGone."""

import asyncio
from collections.abc import Awaitable, Collection
from types import TracebackType
from typing import TypeVar

from antiphon.transport.http.channel import ClientGone
from antiphon.transport.http.request import Request

T = TypeVar("T")


class ClientTask:
    """Base of channels whose task is bound to the client: inside `with channel:` a disconnect cancels the task.

    Subclasses watch for the disconnect from `__enter__` on.
    """

    __slots__: Collection[str] = frozenset()  # none of its own: the subclasses define theirs

    _worker: asyncio.Task[None] | None  # the task inside `with channel:`
    _cancelled: asyncio.Task[None] | None  # the task that was cancelled because its client disconnected

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker = None
        if self._cancelled is not None:
            cancelled, self._cancelled = self._cancelled, None
            if cancelled.uncancel() == 0 and error_type is asyncio.CancelledError:
                raise ClientGone from error

    def _cancel(self) -> None:
        """Cancel the task of a client that disconnected."""
        if self._worker is not None:
            self._cancelled, self._worker = self._worker, None
            self._cancelled.cancel()


async def run_for_client(request: Request, operation: Awaitable[T]) -> T:
    """Await `operation`. Raises ClientGone if the client disconnects first."""
    with request.channel:
        return await operation
