"""A connection to the sandbox process: requests by number, each with its answers."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

from antiphon import errors
from antiphon.errors import SandboxUnavailable
from antiphon.sandbox.worker import frames

_BUSY_SECONDS = 5.0
LOST = "The sandbox process has ended."
# by codes of the protocol; others are failures of the sandbox
_ERRORS: dict[str, Callable[[str], errors.AntiphonError]] = {
    "unknown_container": errors.UnknownContainer,
    "too_many_containers": partial(errors.Busy, retry_after=_BUSY_SECONDS),
    "container_full": errors.StorageLimitReached,
    "file_not_found": partial(errors.NotFound, param="path"),
    "invalid_path": partial(errors.InvalidValue, param="path"),
    "not_a_file": partial(errors.InvalidValue, param="path"),
}


class SandboxConnection:
    """Requests of one server process to the sandbox process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: str = LOST) -> None:
        """`lost` is the error of requests that the end of the connection leaves without an answer."""
        self._lost = lost
        self._reader = reader
        self._writer = writer
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Queue[frames.Frame | None]] = {}
        self._task = asyncio.get_running_loop().create_task(self._receive())

    @property
    def is_open(self) -> bool:
        return not self._task.done()

    async def close(self) -> None:
        self._task.cancel()
        self._writer.close()
        with suppress(asyncio.CancelledError, OSError):
            await self._task
        with suppress(OSError):  # also of TLS
            await self._writer.wait_closed()

    async def request(self, op: str, seconds: float, payload: bytes = b"", /, **arguments: Any) -> frames.Frame:
        """Send a request and return its last answer. Raises AntiphonError, after some seconds at the latest."""
        answers = self.stream(op, seconds, payload, **arguments)
        try:
            return [answer async for answer in answers][-1]
        finally:
            await answers.aclose()

    def make_number(self) -> int:
        """Return the number of a request, by which another one can name it."""
        return next(self._numbers)

    async def stream(
        self, op: str, seconds: float, payload: bytes = b"", /, *, number: int = 0, queued: float = 0, **arguments: Any
    ) -> AsyncGenerator[frames.Frame, None]:
        """Send a request and yield all answers; the header of the last one has `end`.

        A request that may be `queued` for some seconds has its own time from the answer `started` on.
        """
        number = number or self.make_number()
        queue: asyncio.Queue[frames.Frame | None] = asyncio.Queue()
        self._answers[number] = queue
        try:
            async with asyncio.timeout(queued or seconds) as deadline:
                self._send({"call": number, "op": op, **arguments}, payload)
                while True:
                    header, data = self._check(await queue.get())
                    if "started" in header:
                        queued = 0.0
                        deadline.reschedule(asyncio.get_running_loop().time() + seconds)
                        continue
                    yield header, data
                    if "end" in header:
                        return
        except TimeoutError:
            if queued:
                raise errors.Busy(f"Earlier calls have used the container for {queued:g} s.", retry_after=_BUSY_SECONDS)
            raise SandboxUnavailable(f"The sandbox did not answer within {seconds:g} s.")
        finally:
            del self._answers[number]

    def _send(self, header: frames.Header, payload: bytes) -> None:
        if not self.is_open:
            raise SandboxUnavailable(self._lost)
        if len(payload) > frames.MAX_PAYLOAD:  # the sandbox process would end the connection
            raise errors.InvalidValue(f"Code has at most {frames.MAX_PAYLOAD:,} bytes.", param="code")
        self._writer.write(frames.pack(header, payload))

    async def _receive(self) -> None:
        """Give answers to their requests until the connection ends; then all of them fail."""
        try:
            with suppress(frames.InvalidFrame):
                while (frame := await frames.read(self._reader)) is not None:
                    if (queue := self._answers.get(frame[0].get("call", 0))) is not None:
                        queue.put_nowait(frame)
        finally:
            for queue in self._answers.values():
                queue.put_nowait(None)

    def _check(self, frame: frames.Frame | None) -> frames.Frame:
        if frame is None:
            raise SandboxUnavailable(self._lost)
        if "error" not in frame[0]:
            return frame
        message: str = frame[0]["message"]
        if make_error := _ERRORS.get(frame[0]["error"]):
            raise make_error(f"{message[:1].upper()}{message[1:]}.")
        raise SandboxUnavailable(f"The sandbox failed: {message}.")
