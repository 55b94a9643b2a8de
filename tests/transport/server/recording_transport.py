"""Test doubles for a connection: transports that record writes, and the HttpTransport of an HttpExchange."""

import asyncio
from collections import deque
from typing import Any

from uvicorn.server import ServerState

from antiphon.transport.http.channel import Header
from antiphon.transport.server.http_exchange import HttpExchange
from antiphon.transport.server.response_head import ResponseHeads


async def run_loop_once() -> None:
    await asyncio.sleep(0)


class RecordingTransport:
    """A transport that records the writes."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True


class RecordingHttpTransport(RecordingTransport):
    """A recording transport with all methods that HttpProtocol calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def set_write_buffer_limits(self, high: int) -> None: ...

    def write_eof(self) -> None:
        self.calls.append("ended")

    def abort(self) -> None:
        self.calls.append("aborted")
        self.closing = True

    def pause_reading(self) -> None:
        self.calls.append("paused")

    def resume_reading(self) -> None:
        self.calls.append("resumed")


class RecordingConnection:
    """An HttpTransport that records how exchanges end."""

    def __init__(self) -> None:
        self.heads = ResponseHeads()
        self.state = ServerState()
        self.transport: Any = RecordingTransport()
        self.write_paused = False
        self.read_paused = False
        self.waiting: deque[HttpExchange] = deque()
        self.calls: list[str] = []
        self._writable = asyncio.Event()

    def make_exchange(self, method: str = "POST", *headers: Header) -> HttpExchange:
        return HttpExchange(self, method, b"/", b"", dict(headers), task=asyncio.current_task())

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        self._writable.set()

    async def drain(self) -> None:
        await self._writable.wait()

    def resume_reading(self) -> None:
        self.read_paused = False

    def finish_exchange(self, exchange: HttpExchange) -> None:
        self.calls.append("finished" if exchange.keep_alive else "finished and closing")

    def abandon_exchange(self, exchange: HttpExchange) -> None:
        self.calls.append("abandoned")
