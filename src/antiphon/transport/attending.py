"""Work for a client, as long as that is there: who leaves cancels the task that works for it, which sees ClientGone."""

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import TypeVar

from msgspec import Struct

from antiphon.transport.http import ClientGone, Request
from antiphon.transport.line import Line

T = TypeVar("T")


class Attendance(Struct, eq=False):
    line: Line
    driver: asyncio.Task[None] | None = None
    gone: bool = False

    def __enter__(self) -> None:
        self.driver = self.line.task
        self.line.watch(self._leave)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.line.watch(None)
        if self.gone and self.driver is not None and self.driver.uncancel() == 0 and kind is asyncio.CancelledError:
            raise ClientGone from error

    def _leave(self) -> None:
        self.gone = True
        if self.driver is not None:
            self.driver.cancel()


async def attended(request: Request, work: Awaitable[T]) -> T:
    """Raises ClientGone if the client leaves before it is done."""
    with Attendance(request.line):
        return await work
