"""One client's connection: HTTP/1.1 as httptools reads it, one request after the other, within bounds and clocks.

    idle ──first byte──► head ──blank line──► body ──last byte──► answering ──► idle
           header_bytes, header_seconds    body_seconds         stall_seconds: unread     keepalive_seconds

What is malformed, too large or too slow here never reaches the application and is answered in the shape of
every other error. A head that came before, but for the length of its body, is known without the parser
(familiar.py). The server lets all connections look at their clocks twice a second: a request that comes and
goes between two looks pays nothing for them. The size of a body is the application's business (http.py).

Who offers another protocol than HTTP/1.1 gets a WebSocket, or is answered in this one as if there were no other.

Requests that a client sends before those ahead of them are answered.

A few are parsed and wait. The bytes behind them are held back as they came, until all of those are answered: one read
may have thousands of requests in it, and making them at once would take the time of everybody else.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from typing import Any, Final, Literal

import httptools
from uvicorn.server import ServerState

from antiphon.errors import AntiphonError, BadRequest, HeadersTooLarge, Internal, TooSlow
from antiphon.ids import new_id
from antiphon.transport.http import error_responses
from antiphon.transport.http.channel import CLOSE, Header, repeated
from antiphon.transport.http.request import JSON, Request, received
from antiphon.transport.server.head_cache import LENGTH, Familiar, familiar
from antiphon.transport.server.http_exchange import Cycle, Heads, Unread
from antiphon.transport.server.settings import ServerSettings

MOST: Final = 8  # requests that wait for those before them, before no more are made of what came
_EMPTY_LINE: Final = b"\r\n\r\n"


def share(data: bytes, end: int) -> int:
    """Up to where it is parsed at once: so many requests may end between `end` and there. Each has an empty line."""
    for _ in range(MOST):
        found = data.find(_EMPTY_LINE, end)
        if found < 0:
            return len(data)
        end = found + len(_EMPTY_LINE)
    return end


def asks_for_socket(headers: Sequence[Header]) -> bool:
    """Whatever else is offered beside it."""
    tokens = dict(headers).get(b"connection", b"").lower().split(b",")
    offered = [value.lower() for name, value in headers if name == b"upgrade"]
    return b"websocket" in offered and b"upgrade" in map(bytes.strip, tokens)


def framing(fields: dict[bytes, bytes]) -> bytes:
    """All that the parser has to be told to read the body of a request with this head; nothing if it has none.

    Who offers another protocol, as Java's HttpClient does on every request, is answered in this one. But the parser
    takes whatever follows such a head for that protocol, and would take a body for the next request.
    """
    told = (b"content-length", b"transfer-encoding")
    lines = [b"%b: %b\r\n" % (name, fields[name]) for name in told if name in fields]
    return b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(lines) if lines else b""


WRITE_BUFFER = 64 * 1024  # bytes a client may leave unread before `send` waits
READ_BUFFER = 64 * 1024  # bytes of a body that nobody has read yet, or behind it, before no more are taken
LINGER = 2.0  # seconds in which a refused client may go on sending, so that it gets to read why
_SLASH = ord("/")
_log = logging.getLogger(__name__)

Awaited = Literal["head", "body", "request", "nothing"]


class Connection(asyncio.Protocol):
    __slots__ = (
        "_active", "_answer", "_arrived", "_between", "_fault", "_framing", "_fresh", "_head_cap", "_headers", "_held",
        "_known", "_length", "_owed", "_receiving", "_refused_at", "_seen", "_settings", "_since", "_unread", "_url",
        "_writable", "cycle", "heads", "loop", "parser", "read_paused", "state", "transport", "waiting", "write_paused",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(
        self,
        config: ServerSettings,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.loop = _loop or asyncio.get_running_loop()
        self.parser: Any = httptools.HttpRequestParser(self)
        # What follows a request that is to be the last one is nobody's business, and no mistake.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.cycle: Cycle | None = None  # the newest
        self.write_paused = False
        self._active: Cycle | None = None  # what is being answered, or was last
        self._settings = config
        self.state = server_state
        self.heads = config.heads
        app: Any = config.app
        self._answer: Callable[[Request], Coroutine[Any, Any, None]] = app.answer
        self._head_cap = config.limits.header_bytes
        self._arrived = 0  # bytes that belong to a head, or to whatever else is not whole yet and no body
        self._url = b""
        self._headers: list[Header] = []
        self._receiving: Cycle | None = None  # whose body is being read
        self.waiting: deque[Cycle] = deque()  # until those before them are answered
        self._fault: AntiphonError = BadRequest("This is not a well-formed HTTP request.")
        self._seen: tuple[Cycle | None, Awaited] = (None, "head")  # at the last look at the clocks
        self._since = self.loop.time()  # it was first seen
        self._refused_at = 0.0
        self.read_paused = False
        self._between = True  # requests: nothing has come of the next one, or all of the last
        self._known: Familiar | None = None  # the head of a request, for who sends it again
        self._owed = 0  # bytes that are missing from the body behind it
        self._length = 0  # the same of a body that the parser reads; 0 if it comes in chunks
        self._held = b""  # what came behind as many as may wait
        self._fresh = b""  # what the parser is given, from the first byte of a request on
        self._framing = b""  # of a body that it has to be told of
        self._writable: asyncio.Event | None = None
        self._unread: Unread | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # it is one
        self.transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER)
        self.state.connections.add(self)  # type: ignore[arg-type]  # uvicorn names those of its own

    def connection_lost(self, error: Exception | None) -> None:
        self.state.connections.discard(self)
        self._lose()
        self.resume_writing()
        self.parser = self.cycle = self._active = self._receiving = self._known = None  # they know us
        self._seen = (None, "nothing")

    def data_received(self, data: bytes) -> None:
        if self._refused_at:
            return
        while data:
            if self.waiting and self._holds(data):
                return
            if self._owed:
                data = self._take_owed(data)
                continue
            known = self._known if self._between else None
            if known is None or not (length := known.length_in(data)):
                data = self._parse(data)
                continue
            # A request whose head is known: not repeated in any name, and others may follow it.
            start, size = known.size + len(length), int(length)
            body = data[start : start + size]
            self._owed = owed = size - len(body)
            self._between = not owed
            fields = {**known.fields, LENGTH: length}
            self._come(Cycle(self, known.method, known.path, known.query, fields, (), True, body, owed > 0))
            if len(body) > READ_BUFFER:
                self._pause_reading()
            data = data[start + size :]

    def _parse(self, data: bytes) -> bytes:
        """What is to be parsed later, or anew, is given back."""
        if self._between and self.cycle is not None and not self.cycle.keep_alive:
            return b""  # what follows the last request is nobody's business
        self._fresh, self._between = data if self._between else b"", False
        view, start, end = memoryview(data), 0, 0
        try:
            while end < len(data) and not self._between and len(self.waiting) < MOST and not self._refused_at:
                start, end = end, share(data, end + self._length)
                self._arrived += end - start
                self.parser.feed_data(view[start:end])
                self._fresh = b""
                if self._arrived > self._head_cap:
                    self._refuse(self._too_large())
        except httptools.HttpParserUpgrade as offer:
            if self._receiving is None:
                self._upgrade()
                return b""
            return self._framing + data[start + offer.args[0] :]
        except httptools.HttpParserError:
            _log.debug("What was received is not HTTP, or more than is taken.")
            self._refuse(self._fault)
        return b"" if self._refused_at else data[end:]

    def _take_owed(self, data: bytes) -> bytes:
        """The body goes on. What follows it is given back."""
        piece = data[: self._owed]
        self._owed -= len(piece)
        self.on_body(piece)
        if not self._owed:
            self.on_message_complete()
        return data[len(piece) :]

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._url = b""
        self._between = False
        self._headers = []  # trailers of the last one are dropped
        self._arrived = self._arrived or 1

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._framing:  # it was told
            self._framing, self._arrived = b"", 0
            return
        fresh, self._fresh = self._fresh, b""  # what follows is another's
        if self._arrived > self._head_cap and self._head_size() > self._head_cap:
            self._fault = self._too_large()
            raise self._fault
        path, _, query = self._url.partition(b"#")[0].partition(b"?")
        if path[0] != _SLASH or not path.isascii():  # `GET http://other.host/`: a proxy's business
            raise self._fault
        self._arrived = 0
        offers = self.parser.should_upgrade()
        if offers and asks_for_socket(self._headers) and self._settings.ws_protocol_class is not None:
            self._receiving = None
            return
        headers, self._headers = self._headers, []  # what comes now are trailers; they must not pass for headers
        fields = dict(headers)
        if offers:
            self._framing = framing(fields)
        cycle = Cycle(self, self.parser.get_method().decode("ascii"), path, query, fields)
        if len(fields) != len(headers):
            cycle.repeated = repeated(headers)
        cycle.keep_alive = self.parser.should_keep_alive() and not self._is_old(cycle)
        if not cycle.keep_alive:
            self._known = None  # what follows the last one is nobody's business, known or not
        elif fresh and self.parser.get_http_version() == "1.1":
            self._known = familiar(fresh, cycle, self._head_cap) or self._known
        self._length = int(fields.get(LENGTH, 0))  # the parser has read it
        self._come(cycle)

    def on_body(self, piece: bytes) -> None:
        self._arrived, self._length = 0, max(0, self._length - len(piece))
        cycle = self._receiving
        if cycle is not None and not cycle.complete and cycle.take(piece) > READ_BUFFER:
            self._pause_reading()

    def on_message_complete(self) -> None:
        self._arrived = 0
        if self._framing:  # its body is still to come
            return
        self._between = True
        if self._receiving is not None:
            self._receiving.take_end()

    # What a cycle calls.

    def replied(self, cycle: Cycle) -> None:
        if not cycle.keep_alive:
            self.transport.close()
        elif (self.read_paused or self.waiting) and not self.transport.is_closing():
            if self.waiting:  # not in the context of this one: its trace and its bill are nobody else's
                Context().run(self._start, self.waiting.popleft())
            if self._held and not self.waiting:
                held, self._held = self._held, b""
                self.data_received(held)
            self.resume_reading()

    def left_open(self, cycle: Cycle) -> None:
        if cycle.started:
            cycle.send_head()
            self.transport.close()
        else:
            self._refuse(Internal("The server ended this request without an answer."))

    async def drain(self) -> None:
        if self.write_paused:
            self._writable = self._writable or asyncio.Event()
            await self._writable.wait()

    def resume_reading(self) -> None:
        if self.read_paused and len(self._held) <= READ_BUFFER:
            self.read_paused = False
            self.transport.resume_reading()

    # What the transport calls.

    def pause_writing(self) -> None:
        self.write_paused = True
        self._unread = Unread(self.transport, self.loop.time())

    def resume_writing(self) -> None:
        self.write_paused = False
        self._unread = None
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    # What the server calls.

    def check(self, now: float) -> None:
        """Look at the clocks. They start with the first look that finds something to wait for."""
        if self._refused_at:
            if now - self._refused_at > LINGER:
                self.transport.abort()
            return
        seen = (self.cycle, self._awaited())
        if seen != self._seen:
            self._seen, self._since = seen, now
        else:
            self._check_clock(seen[1], now - self._since)
        if self._unread is not None:
            self._unread.check(now, self._settings.stall_seconds)

    def shutdown(self) -> None:
        if self._refused_at:
            self.transport.abort()
        elif self.cycle is None or self.cycle.complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def _awaited(self) -> Awaited:
        """What the client owes us just now."""
        cycle = self.cycle
        if self.read_paused or self._held:
            return "nothing"
        if cycle is None or (cycle.complete and (self._arrived or cycle.more)):  # nobody needs the rest of that body
            return "head"
        if cycle.complete:
            return "request"
        return "body" if cycle.more else "nothing"

    def _check_clock(self, awaited: Awaited, passed: float) -> None:
        limits = self._settings.limits
        if awaited == "head" and passed > limits.header_seconds:
            self._refuse(TooSlow(f"The headers did not arrive within {limits.header_seconds:g} seconds."))
        elif awaited == "body" and passed > limits.body_seconds:
            self._refuse(TooSlow(f"The body did not arrive within {limits.body_seconds:g} seconds."))
        elif awaited == "request" and passed > self._settings.timeout_keep_alive:
            self.transport.close()

    def _come(self, cycle: Cycle) -> None:
        """It is the newest: answered now, or after those before it."""
        before, self.cycle, self._receiving = self.cycle, cycle, cycle
        if before is None or before.complete:
            self._start(cycle)
        else:
            self.waiting.append(cycle)

    def _holds(self, data: bytes) -> bool:
        """Whether it waits as it came, behind as many requests as may."""
        if not self._held and len(self.waiting) < MOST:
            return False
        self._held += data
        if len(self._held) > READ_BUFFER:
            self._pause_reading()
        return True

    def _start(self, cycle: Cycle) -> None:
        self._active = cycle
        # With a name, and without the loop's help: a request's task costs a fifth less.
        cycle.task = task = asyncio.Task(self._answer(received(cycle, Request)), loop=self.loop, name="request")
        self.state.tasks.add(task)

    def _is_old(self, cycle: Cycle) -> bool:
        """HTTP/1.0, whose clients are not kept, though they may ask for it. They do so in a header."""
        return b"connection" in cycle.fields and self.parser.get_http_version() == "1.0"

    def _pause_reading(self) -> None:
        if not self.read_paused and not self.transport.is_closing():
            self.read_paused = True
            self.transport.pause_reading()

    def _lose(self) -> None:
        """For the application, nobody is there any more."""
        if self._active is not None and not self._active.complete:
            self._active.leave()
        self.waiting.clear()
        self._held = b""

    def _upgrade(self) -> None:
        """From here on another protocol has the connection; a parser that calls us would keep us for nothing. In the
        midst of an answer it has not: nobody would notice any more that the client of that has left."""
        if self.cycle is not None and not self.cycle.complete:
            self._refuse(self._fault)
            return
        self.state.connections.discard(self)
        lines = [b"%b: %b\r\n" % header for header in self._headers if header[0] != b"upgrade"]
        lines.append(b"upgrade: websocket\r\n")  # what was chosen of all that may have been offered
        head = b"%b %b HTTP/1.1\r\n%b\r\n" % (self.parser.get_method(), self._url, b"".join(lines))
        socket: Any = self._settings.ws_protocol_class
        protocol = socket(config=self._settings, server_state=self.state, app_state={})
        protocol.connection_made(self.transport)
        protocol.data_received(head)
        self.transport.set_protocol(protocol)
        self.parser = self.cycle = self._active = None

    def _refuse(self, error: AntiphonError) -> None:
        """Answer in the application's place, and hang up."""
        if self._refused_at or self.transport.is_closing():
            return
        self._settings.count_refusal(error.status)
        self._refused_at = self.loop.time()
        if self._is_answering():
            self.transport.abort()
            return
        self._lose()
        self.transport.write(_reply(error))
        self.transport.write_eof()
        self.resume_reading()

    def _is_answering(self) -> bool:
        """Whether something has been sent that belongs to a request which is not over: no room for another reply."""
        cycle = self._active
        return cycle is not None and cycle.started and (not cycle.complete or cycle.more)

    def _head_size(self) -> int:
        return len(self._url) + sum(len(name) + len(value) + 4 for name, value in self._headers)

    def _too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(f"The request line and headers are larger than {self._head_cap} bytes together.")


def _reply(error: AntiphonError) -> bytes:
    body = error_responses.body(error)
    headers = [
        JSON,
        (b"content-length", b"%d" % len(body)),
        CLOSE,
        (b"x-request-id", new_id("req").encode()),
        (b"openai-processing-ms", b"0"),
    ]
    return Heads().make(error.status, (), headers) + body
