"""Parses the requests of an HTTP/1.1 connection: bytes in, events out, without IO.

    RequestHead ─► bytes … ─► EndOfRequest ─► RequestHead …
                                    └─ or at the end: WebSocketOffer, RequestRefusal

The syntax is that of httptools (llhttp), which rejects ambiguous framing: a repeated Content-Length, or one beside a
Transfer-Encoding (RFC 9112 §6.3). The rules here are about what it leaves open.
"""

from collections.abc import Sequence
from typing import Any, Final

import httptools
from msgspec import Struct

Header = tuple[bytes, bytes]

MAX_BATCH: Final = 8  # requests that are parsed at a time: one read may contain thousands
MALFORMED: Final = "This is not a well-formed HTTP request."
_EMPTY_LINE: Final = b"\r\n\r\n"
_SCHEMES: Final = (b"http", b"https")


class RequestHead(Struct, frozen=True):
    """The request line and the headers, whose names are in lower case."""

    method: str
    path: bytes
    query: bytes
    headers: list[Header]
    version: str  # "1.1" or "1.0"
    keep_alive: bool  # whether the client may send another request on the connection


class EndOfRequest(Struct, frozen=True):
    """The body of the request is complete."""


class WebSocketOffer(Struct, frozen=True):
    """The client wants to switch to the WebSocket protocol. Nothing is parsed after it."""

    head: bytes  # the request again, as the handshake has to see it


class RequestRefusal(Struct, frozen=True):
    """The connection cannot go on: reply with `status` and close it. Nothing is parsed after it."""

    status: int
    message: str


Event = RequestHead | bytes | EndOfRequest | WebSocketOffer | RequestRefusal

_END_OF_REQUEST: Final = EndOfRequest()


class RequestParser:
    """The parser of one connection.

    `accept_websockets`: whether offers to switch to the WebSocket protocol are reported; other protocols, and this one
    otherwise, are ignored, as RFC 9110 §7.8 permits.
    """

    __slots__ = (
        "_accept_websockets", "_body_remaining", "_events", "_framing", "_handshake", "_head_bytes", "_headers",
        "_max_head_bytes", "_parser", "_refusal", "_url", "is_between_requests", "unparsed",
    )  # fmt: skip

    def __init__(self, max_head_bytes: int, *, accept_websockets: bool) -> None:
        self._parser: Any = httptools.HttpRequestParser(self)
        # Data behind the last request of a connection is ignored and is no error (RFC 9112 §9.6).
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._max_head_bytes = max_head_bytes
        self._accept_websockets = accept_websockets
        self._events: list[Event] = []
        self.unparsed = b""  # received bytes that `next_events` parses
        self._head_bytes = 0  # bytes received of an incomplete head, or of anything else incomplete that is no body
        self._body_remaining = 0  # missing bytes of the body; 0 if it is chunked
        self._url = b""
        self._headers: list[Header] = []
        self._framing = b""  # the head that `_make_framing_head` made for a body that is still to be parsed
        self._handshake = b""  # the request for a WebSocket, once its head is complete
        self._refusal = RequestRefusal(400, MALFORMED)
        self.is_between_requests = True  # no byte of the next request has arrived

    @property
    def is_in_head(self) -> bool:
        return self._head_bytes > 0

    def receive(self, data: bytes) -> None:
        """Add received bytes, which `next_events` parses."""
        self.unparsed = self.unparsed + data if self.unparsed else data

    def close(self) -> None:
        """Drop the parser, which references this object: only the garbage collector would free the two."""
        self._parser = None
        self.unparsed = b""

    def next_events(self) -> list[Event]:
        """Parse received bytes, up to the end of a request and at most about MAX_BATCH requests.

        Returns an empty list if a request is not complete yet and has nothing new.
        """
        data, self.unparsed = self.unparsed, b""
        self.is_between_requests = False
        view, start, end = memoryview(data), 0, 0
        try:
            while end < len(data) and not self.is_between_requests and len(self._events) < MAX_BATCH:
                start, end = end, find_batch_end(data, end + self._body_remaining)
                self._head_bytes += end - start
                self._parser.feed_data(view[start:end])
                if self._head_bytes > self._max_head_bytes:
                    self._events.append(self._too_large())
                    break
            self.unparsed = data[end:]
        except httptools.HttpParserUpgrade as offer:
            if self._handshake:
                self._events.append(WebSocketOffer(self._handshake))
            else:
                self.unparsed = self._framing + data[start + offer.args[0] :]
        except httptools.HttpParserError:
            self._events.append(self._refusal)
        events, self._events = self._events, []
        return events

    # Called by httptools.

    def on_message_begin(self) -> None:
        self._url = b""
        self.is_between_requests = False
        self._headers = []  # drops the trailers of the previous request
        self._head_bytes = self._head_bytes or 1

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._framing:  # the head is our own, from `_make_framing_head`
            self._framing, self._head_bytes = b"", 0
            return
        if self._head_bytes > self._max_head_bytes and self._head_size() > self._max_head_bytes:
            self._refusal = self._too_large()
            raise ValueError(self._refusal.message)
        headers, self._headers = self._headers, []  # trailers must not be taken for headers (RFC 9110 §6.5.1)
        path, query, headers = self._read_target(headers)
        self._head_bytes = 0
        fields = dict(headers)
        is_upgrade = self._parser.should_upgrade()
        if is_upgrade and self._accept_websockets and _is_websocket_upgrade(headers):
            self._handshake = _render_handshake(self._parser.get_method(), path, query, headers)
            return
        if is_upgrade:
            self._framing = _make_framing_head(fields)
        method, version = self._parser.get_method().decode("ascii"), self._parser.get_http_version()
        # An HTTP/1.0 client that asks for keep-alive does not get it: proxies may not understand it (RFC 9112 §9.3).
        keep_alive = version != "1.0" and self._parser.should_keep_alive()
        self._body_remaining = int(fields.get(b"content-length", 0))  # httptools has validated it
        self._events.append(RequestHead(method, path, query, headers, version, keep_alive))

    def on_body(self, piece: bytes) -> None:
        self._head_bytes, self._body_remaining = 0, max(0, self._body_remaining - len(piece))
        if not self._handshake:
            self._events.append(piece)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        if self._framing or self._handshake:  # its body is still to be parsed, or it is no request
            return
        self.is_between_requests = True
        self._events.append(_END_OF_REQUEST)

    def _read_target(self, headers: list[Header]) -> tuple[bytes, bytes, list[Header]]:
        """Return the path and the query of the request target, and the headers with the host that it names.

        Accepts the origin-form (RFC 9112 §3.2.1) and the absolute-form, whose host replaces that of the Host header
        (§3.2.2). The forms of CONNECT and of `OPTIONS *` address no resource of an application, and are refused.
        """
        target = self._url.partition(b"#")[0]
        if not target.startswith(b"/"):
            target, host = _split_absolute_form(target)
            headers = [(name, host if name == b"host" else value) for name, value in headers]
        if not target.isascii():
            raise ValueError(MALFORMED)
        path, _, query = target.partition(b"?")
        return path, query, headers

    def _head_size(self) -> int:
        return len(self._url) + sum(len(name) + len(value) + 4 for name, value in self._headers)

    def _too_large(self) -> RequestRefusal:
        message = f"The request line and headers are larger than {self._max_head_bytes} bytes together."
        return RequestRefusal(431, message)


def find_batch_end(data: bytes, end: int) -> int:
    """Return where to stop parsing for now: at most MAX_BATCH requests end between `end` and there.

    Each request contains an empty line (RFC 9112 §2.1).
    """
    for _ in range(MAX_BATCH):
        found = data.find(_EMPTY_LINE, end)
        if found < 0:
            return len(data)
        end = found + len(_EMPTY_LINE)
    return end


def _split_absolute_form(target: bytes) -> tuple[bytes, bytes]:
    """Split `http://host/path` into the path and the host. Raises ValueError for anything else."""
    scheme, separator, remainder = target.partition(b"://")
    end = min((at for at in (remainder.find(b"/"), remainder.find(b"?")) if at >= 0), default=len(remainder))
    host, path = remainder[:end], remainder[end:]
    if scheme.lower() not in _SCHEMES or not separator or not host or b"@" in host:  # user names: RFC 9110 §4.2.4
        raise ValueError(MALFORMED)
    return path if path.startswith(b"/") else b"/" + path, host


def _is_websocket_upgrade(headers: Sequence[Header]) -> bool:
    """Return whether the head requests a WebSocket (RFC 6455 §4.2.1), whatever other protocols it offers."""
    tokens = dict(headers).get(b"connection", b"").lower().split(b",")
    offered = [value.lower() for name, value in headers if name == b"upgrade"]
    return b"websocket" in offered and b"upgrade" in map(bytes.strip, tokens)


def _render_handshake(method: bytes, path: bytes, query: bytes, headers: Sequence[Header]) -> bytes:
    """Render the request for the WebSocket protocol, with the one protocol chosen of those offered."""
    lines = [b"%b: %b\r\n" % header for header in headers if header[0] != b"upgrade"]
    target = b"%b?%b" % (path, query) if query else path
    return b"%b %b HTTP/1.1\r\n%bupgrade: websocket\r\n\r\n" % (method, target, b"".join(lines))


def _make_framing_head(fields: dict[bytes, bytes]) -> bytes:
    """Build a minimal head that makes the parser read the body of a request with these fields; empty if it has no body.

    Clients that offer another protocol, as Java's HttpClient does on every request, are answered in HTTP/1.1. But the
    parser takes all bytes behind such a head for the other protocol, and would take a body for the next request.
    """
    names = (b"content-length", b"transfer-encoding")
    lines = [b"%b: %b\r\n" % (name, fields[name]) for name in names if name in fields]
    return b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(lines) if lines else b""
