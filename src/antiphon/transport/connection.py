"""One client's connection: uvicorn's HTTP protocol with the bounds and clocks that it lacks.

    idle ──first byte──► head ──blank line──► body ──last byte──► answering ──► idle
           header_bytes, header_seconds    body_seconds         stall_seconds: unread

What is malformed, too large or too slow here never reaches the application and is answered in the shape of
every other error. The server lets all connections look at their clocks twice a second: a request that comes and
goes between two looks pays nothing for them. The size of a body is the application's business (http.py).
"""

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from antiphon.errors import AntiphonError, BadRequest, HeadersTooLarge, TooSlow
from antiphon.ids import new_id
from antiphon.transport import problems
from antiphon.transport.http import JSON
from antiphon.transport.outbox import Outbox
from antiphon.transport.settings import ServerSettings
from antiphon.transport.unread import Unread

WRITE_BUFFER = 64 * 1024  # bytes a client may leave unread before `send` waits
LINGER = 2.0  # seconds in which a refused client may go on sending, so that it gets to read why
_H2C_WITHIN = 512
_SLASH = ord("/")


class Connection(HttpToolsProtocol):
    # In slots, since uvicorn's class leaves room for but two more attributes before CPython gives up on its fast
    # layout for instances.
    __slots__ = (
        "_arrived", "_fault", "_head_cap", "_outbox", "_refused_at", "_resting_at", "_seen", "_settings", "_unread",
    )  # fmt: skip

    def __init__(
        self,
        config: ServerSettings,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._settings = config
        self._head_cap = config.limits.header_bytes
        self._arrived = 0  # bytes that belong to a head, or to whatever else is not whole yet and no body
        self._fault: AntiphonError = BadRequest("This is not a well-formed HTTP request.")
        self._seen: RequestResponseCycle | None = None  # at the last look at the clocks
        self._resting_at = self.loop.time()  # when a look at the clocks last found nothing to wait for
        self._refused_at = 0.0
        self._unread: Unread | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER)
        self._outbox: Any = Outbox(transport, self.loop)  # all of a Transport that a cycle uses

    def data_received(self, data: bytes) -> None:
        if self._refused_at:
            return
        self._arrived += len(data)
        if data.find(b"h2c", 0, _H2C_WITHIN) >= 0 and not self._is_in_body():
            data = _without_h2c(data)
        HttpToolsProtocol.data_received(self, data)
        if self._arrived > self._head_cap:
            self._refuse(self._too_large())

    def on_headers_complete(self) -> None:
        if self._arrived > self._head_cap and self._head_size() > self._head_cap:
            self._fault = self._too_large()
            raise self._fault
        if self.url[0] != _SLASH:  # `GET http://other.host/`: a proxy's business
            raise self._fault
        self._arrived = 0
        HttpToolsProtocol.on_headers_complete(self)
        if self.cycle is None or self.cycle.scope is not self.scope:  # it goes on as a WebSocket
            return
        self.cycle.transport = self._outbox
        self.headers = []  # what comes now are trailers; they must not pass for headers

    def on_body(self, body: bytes) -> None:
        self._arrived = 0
        HttpToolsProtocol.on_body(self, body)

    def handle_websocket_upgrade(self) -> None:
        """From here on another protocol has the connection; a parser that calls us would keep us for nothing. In the
        midst of an answer it has not: nobody would notice any more that the client of that has left."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._refuse(self._fault)
            return
        super().handle_websocket_upgrade()
        self.parser = None  # type: ignore[assignment]  # as uvicorn leaves it when a connection is lost

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = Unread(self.transport, self.loop.time())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread = None

    def check(self, now: float) -> None:
        """Look at the clocks. They start with the first look that finds something to wait for."""
        if self._refused_at:
            if now - self._refused_at > LINGER:
                self.transport.abort()
            return
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not self._seen:
            self._seen, self._resting_at = cycle, now
        if cycle is None or cycle.response_complete:
            self._check_head(now)
        elif cycle.more_body:
            self._check_body(now)
        else:
            self._resting_at = now
        if self._unread is not None:
            self._unread.check(now, self._settings.stall_seconds)

    def _check_head(self, now: float) -> None:
        most = self._settings.limits.header_seconds
        if not self._arrived and self.cycle is not None and not self.cycle.more_body:
            self._resting_at = now  # between two requests; uvicorn ends it when the time for that is over
        elif now - self._resting_at > most:
            self._refuse(TooSlow(f"The headers did not arrive within {most:g} seconds."))

    def _check_body(self, now: float) -> None:
        most = self._settings.limits.body_seconds
        if now - self._resting_at > most:
            self._refuse(TooSlow(f"The body did not arrive within {most:g} seconds."))

    def shutdown(self) -> None:
        if self._refused_at:
            self.transport.abort()
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls when the parser gives up, or one of the callbacks above."""
        self._refuse(self._fault)

    def _unsupported_upgrade_warning(self) -> None:
        """The application answers; nobody has to be warned of what clients ask for."""

    def _refuse(self, error: AntiphonError) -> None:
        """Answer in the application's place, and hang up."""
        if self._refused_at or self.transport.is_closing():
            return
        self._settings.count_refusal(error.status)
        self._refused_at = self.loop.time()
        if self._is_answering():
            self.transport.abort()
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # for the application, nobody is there any more
            self.cycle.message_event.set()
        self._unset_keepalive_if_required()
        self.transport.write(_reply(error))
        self.transport.write_eof()
        self.flow.resume_reading()

    def _is_answering(self) -> bool:
        """Whether something has been sent that belongs to a request which is not over: no room for another reply."""
        cycle: RequestResponseCycle | None = self.cycle
        return bool(cycle and cycle.response_started and (not cycle.response_complete or cycle.more_body))

    def _is_in_body(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return bool(cycle and cycle.more_body)

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(f"The request line and headers are larger than {self._head_cap} bytes together.")


def _reply(error: AntiphonError) -> bytes:
    body = problems.body(error)
    headers = [
        JSON,
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        (b"x-request-id", new_id("req").encode()),
        (b"openai-processing-ms", b"0"),
    ]
    lines = [b"HTTP/1.1 %d %b" % (error.status, HTTPStatus(error.status).phrase.encode())]
    lines += [b"%b: %b" % header for header in headers]
    return b"\r\n".join([*lines, b"", body])


def _without_h2c(data: bytes) -> bytes:
    """Java's HttpClient offers HTTP/2 on every request; the parser would take the body for HTTP/2 and drop it."""
    offer = data.lower().find(b"\r\nupgrade: h2c\r\n", 0, data.find(b"\r\n\r\n") + 2)
    return data if offer < 0 else data[: offer + 2] + b"Ignored" + data[offer + 9 :]
