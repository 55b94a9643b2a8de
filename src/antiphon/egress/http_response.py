"""One HTTP answer, taken in pieces without IO: its status, the few headers that count, and its body, decoded.

Everything is counted while it comes: the head, the bytes on the wire, the decoded bytes and how much they swell.
"""

import zlib
from typing import Final

import httptools

from antiphon.errors import FetchFailed

MAX_HEAD_BYTES: Final = 64 * 1024
_SLACK: Final = 256 * 1024  # bytes on the wire beyond those of the body: head and framing
_STEP: Final = 64 * 1024  # decoded at a time, so that a bomb is seen early
_MOST_SWELLING: Final = 200  # decoded bytes for each compressed one
_FREE: Final = 1024 * 1024  # decoded bytes that may come of however few
_OK: Final = 200
_MOVED: Final = frozenset({301, 302, 303, 307, 308})
_KNOWN: Final = frozenset({"", "identity", "gzip", "x-gzip", "deflate"})
_SEEN: Final = frozenset({b"content-type", b"content-encoding", b"content-length", b"transfer-encoding", b"location"})


class Answer:
    def __init__(self, host: str, most: int, param: str) -> None:
        """`most`: decoded bytes of a body."""
        self._host = host
        self._most = most
        self._param = param
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._status = 0
        self._came = 0
        self._swollen = _Swelling(most)
        self._fault = ""
        self.complete = False

    def feed(self, data: bytes) -> None:
        """What came. Raises for an answer that is not wanted, as soon as that is clear."""
        self._came += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise self._failed("answered with something other than HTTP")
        except httptools.HttpParserError:
            if not self.complete:
                raise self._failed("does not speak HTTP")
        if not self._status and self._came > MAX_HEAD_BYTES:
            raise self._failed("sent headers without an end")
        if self._came > self._most + _SLACK:
            raise self._too_much()
        self._check_fault()

    def end(self) -> None:
        """The other side hung up: an answer without a length ends so."""
        sized = b"content-length" in self._headers or b"transfer-encoding" in self._headers
        if not self.complete and (sized or not self._status):
            raise self._failed("hung up in the middle of its answer")
        self.complete = True
        self._check_fault()

    @property
    def location(self) -> str | None:
        """Where a redirect leads."""
        if self._status not in _MOVED:
            return None
        try:
            return self._headers[b"location"].decode()
        except (KeyError, UnicodeDecodeError):
            raise self._failed("redirects to nowhere")

    @property
    def media_type(self) -> str:
        """As it was declared: small letters, without parameters."""
        return self._headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()

    @property
    def charset(self) -> str:
        """As it was declared, if it was."""
        for parameter in self._headers.get(b"content-type", b"").decode("latin-1").split(";")[1:]:
            name, _, value = parameter.partition("=")
            if name.strip().lower() == "charset":
                return value.strip().strip("\"'").lower()
        return ""

    @property
    def begun(self) -> bool:
        """Status and headers are there."""
        return self._status > 0

    def body(self) -> bytes:
        if self._status != _OK:
            raise self._failed(f"answered with the HTTP status {self._status}")
        if not self._swollen.whole:
            raise self._failed("sent a compressed body that breaks off")
        return self._swollen.body()

    def _check_fault(self) -> None:
        if self._swollen.over:
            raise self._too_much()
        if self._fault or self._swollen.fault:
            raise self._failed(self._fault or self._swollen.fault)

    def _too_much(self) -> FetchFailed:
        return FetchFailed(f"{self._host} sent more than the {self._most:,} bytes that are allowed.", param=self._param)

    def _failed(self, what: str) -> FetchFailed:
        return FetchFailed(f"{self._host} {what}.", param=self._param)

    # What the parser calls. Nothing is raised here: it would come out as the parser's own error.

    def on_header(self, name: bytes, value: bytes) -> None:
        known = name.lower()
        if known not in _SEEN:
            return
        if known in self._headers and self._headers[known] != value:
            self._fault = f"sent the header {known.decode()} twice"
        self._headers[known] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < _OK:  # it only says that an answer will come
            self._headers.clear()
            return
        self._status = status
        encoding = self._headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
        if encoding not in _KNOWN:
            self._fault = "sent a body in an encoding that was not asked for"
        elif self._headers.get(b"content-length", b"0").isdigit():
            self._swollen.over = int(self._headers.get(b"content-length", b"0")) > self._most
        self._swollen.begin(encoding)

    def on_body(self, body: bytes) -> None:
        if self._status == _OK and not self._fault:
            self._swollen.feed(body)

    def on_message_complete(self) -> None:
        if self._status:
            self.complete = True


class _Swelling:
    """A body that is decoded as it comes, up to a bound."""

    def __init__(self, most: int) -> None:
        self.over = False
        self.fault = ""
        self._most = most
        self._pieces: list[bytes] = []
        self._size = self._came = 0
        self._raw_deflate = False
        self._zlib: zlib._Decompress | None = None

    def begin(self, encoding: str) -> None:
        if encoding in ("gzip", "x-gzip"):
            self._zlib = zlib.decompressobj(16 + zlib.MAX_WBITS)
        elif encoding == "deflate":
            self._zlib, self._raw_deflate = zlib.decompressobj(), True

    @property
    def whole(self) -> bool:
        return self._zlib is None or self._zlib.eof or not self._came

    def body(self) -> bytes:
        return b"".join(self._pieces)

    def feed(self, data: bytes) -> None:
        if self.over or self.fault:
            return
        first, self._came = not self._came, self._came + len(data)
        if self._zlib is None:
            self._take(data)
            return
        if first and self._raw_deflate and data[0] & 0x0F != 8:  # many servers leave the header of zlib out
            self._zlib = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            self._inflate(data)
        except zlib.error:
            self.fault = "sent a compressed body that cannot be read"

    def _inflate(self, data: bytes) -> None:
        assert self._zlib is not None
        full = True
        while (data or full) and not (self.over or self.fault or self._zlib.eof):
            piece = self._zlib.decompress(data, _STEP)
            data, full = self._zlib.unconsumed_tail, len(piece) == _STEP
            self._take(piece)

    def _take(self, data: bytes) -> None:
        self._size += len(data)
        self.over = self._size > self._most
        if self._zlib is not None and self._size > max(_FREE, self._came * _MOST_SWELLING):
            self.fault = "sent a body that swells beyond measure when it is decoded"
        elif not self.over:
            self._pieces.append(data)
