"""Work for a client, as long as that is there: who leaves cancels the task that works for it, which sees ClientGone."""

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import TypeVar

from antiphon.transport.http import ClientGone, Request
from antiphon.transport.line import Line

T = TypeVar("T")


class Attendance:
    __slots__ = ("_driver", "_gone", "_line")

    _driver: asyncio.Task[object]

    def __init__(self, line: Line) -> None:
        self._line = line
        self._gone = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._driver = task
        self._line.watch(self._leave)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.watch(None)
        if self._gone and self._driver.uncancel() == 0 and kind is asyncio.CancelledError:
            raise ClientGone from error

    def _leave(self) -> None:
        self._gone = True
        self._driver.cancel()


async def attended(request: Request, work: Awaitable[T]) -> T:
    """Raises ClientGone if the client leaves before it is done."""
    with Attendance(request.line):
        return await work
