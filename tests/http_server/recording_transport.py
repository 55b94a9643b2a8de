"""Test doubles for a connection: transports that record writes, and the HttpConnection of an HttpExchange."""

import asyncio
from collections import deque
from typing import Any

from uvicorn.server import ServerState

from antiphon.http_server.http_exchange import HttpExchange
from antiphon.http_server.request_parser import Header, RequestHead
from antiphon.http_server.response_head import ResponseHeads
from antiphon.transport.http.channel import HttpChannel


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

    def get_extra_info(self, name: str) -> Any:
        return None

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
    """An HttpConnection that records how exchanges end."""

    def __init__(self) -> None:
        self.client: tuple[str, int] | None = None
        self.server: tuple[str, int | None] | None = None
        self.heads = ResponseHeads()
        self.state = ServerState()
        self.app_state: dict[str, Any] = {}
        self.transport: Any = RecordingTransport()
        self.write_paused = False
        self.read_paused = False
        self.waiting: deque[HttpExchange] = deque()
        self.calls: list[str] = []
        self._writable = asyncio.Event()

    def make_exchange(self, method: str = "POST", *headers: Header, version: str = "1.1") -> HttpExchange:
        return HttpExchange(self, RequestHead(method, b"/", b"", [*headers], version, version == "1.1"))

    def make_channel(self, method: str = "POST", *headers: Header) -> tuple[HttpExchange, HttpChannel]:
        """Make an exchange, and the channel that the application sees of it."""
        exchange = self.make_exchange(method, *headers)
        return exchange, HttpChannel(exchange.make_scope(), exchange.receive, exchange.send)

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
