"""A connection as a cycle knows it, with a transport that remembers the writes."""

import asyncio
from collections import deque
from typing import Any

from uvicorn.server import ServerState

from antiphon.transport.http.channel import Header
from antiphon.transport.server.http_exchange import Cycle, Heads


async def turn() -> None:
    await asyncio.sleep(0)


class Transport:
    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True


class Socket(Transport):
    """With all that a connection asks of one."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def set_write_buffer_limits(self, high: int) -> None: ...

    def write_eof(self) -> None:
        self.seen.append("ended")

    def abort(self) -> None:
        self.seen.append("aborted")
        self.closing = True

    def pause_reading(self) -> None:
        self.seen.append("paused")

    def resume_reading(self) -> None:
        self.seen.append("resumed")


class Carrier:
    def __init__(self) -> None:
        self.heads = Heads()
        self.state = ServerState()
        self.transport: Any = Transport()
        self.write_paused = False
        self.read_paused = False
        self.waiting: deque[Cycle] = deque()
        self.seen: list[str] = []
        self._writable = asyncio.Event()

    def cycle(self, method: str = "POST", *headers: Header) -> Cycle:
        return Cycle(self, method, b"/", b"", dict(headers), task=asyncio.current_task())

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        self._writable.set()

    async def drain(self) -> None:
        await self._writable.wait()

    def resume_reading(self) -> None:
        self.read_paused = False

    def replied(self, cycle: Cycle) -> None:
        self.seen.append("replied" if cycle.keep_alive else "replied for the last time")

    def left_open(self, cycle: Cycle) -> None:
        self.seen.append("left open")
