"""One HTTP exchange without I/O: the bytes of the request, and the response with its decoded body.

Every size of the response is limited while data arrives: the head, the bytes on the wire, the decoded bytes and the
compression ratio.
"""

import zlib
from typing import Final

from msgspec import Struct

from antiphon.egress.urls import Url
from antiphon.errors import FetchFailed
from antiphon.http1 import HTTP_OK, HttpResponseReader, InvalidResponse

_FRAMING_BYTES: Final = 256 * 1024  # bytes on the wire besides the body: head and framing
_DECODE_STEP: Final = 64 * 1024  # bytes decoded at a time, to detect a decompression bomb early
_MAX_RATIO: Final = 200  # decoded bytes per compressed byte
_RATIO_EXEMPT_BYTES: Final = 1024 * 1024  # decoded bytes that are allowed at any ratio
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_ENCODINGS: Final = frozenset({"", "identity", "gzip", "x-gzip", "deflate"})
_UNIQUE_HEADERS: Final = frozenset({b"content-type", b"content-encoding", b"location"})


class RequestHeaders(Struct, frozen=True, kw_only=True):
    """Additional headers, and the body, of a request to a host that the operator configured.

    With them, a redirect to another origin is not followed, and a POST follows no redirect.
    """

    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None  # JSON; its presence makes the request a POST

    def __repr__(self) -> str:
        return "RequestHeaders(…)"


NO_HEADERS: Final = RequestHeaders()


def render_request(url: Url, accept: str, request_headers: RequestHeaders) -> bytes:
    """Return the bytes of a request with the headers that every fetch sends and those of the caller."""
    lines = [
        f"{'GET' if request_headers.body is None else 'POST'} {url.target} HTTP/1.1",
        f"Host: {url.authority}",
        "User-Agent: antiphon",
        f"Accept: {accept}",
        "Accept-Encoding: gzip, deflate",
        "Connection: close",
        *[f"{name}: {value}" for name, value in request_headers.headers],
    ]
    if request_headers.body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(request_headers.body)}"]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + (request_headers.body or b"")


class HttpResponse(HttpResponseReader):
    """A response whose body is limited and decoded."""

    def __init__(self, host: str, max_bytes: int, param: str) -> None:
        """`max_bytes`: limit of the decoded body."""
        self._host = host
        self._max_bytes = max_bytes
        self._param = param
        self._fault, self._too_large = "", False
        self._chunks: list[bytes] = []  # of the decoded body
        self._size = self._encoded_size = 0  # bytes so far
        self._zlib: zlib._Decompress | None = None
        self._may_be_raw = False
        super().__init__(headers={})
        self.expect_response()

    def feed(self, data: bytes) -> None:
        """Parse received bytes. Raises FetchFailed as soon as the response is known to be unacceptable."""
        try:
            super().feed(data)
        except InvalidResponse as error:
            raise self._make_error(str(error)) from None
        if self.received > self._max_bytes + _FRAMING_BYTES:
            raise self._make_size_error()
        self._raise_fault()

    def require_end(self) -> None:
        """Handle the end of the connection. Raises FetchFailed if the response is not complete."""
        if not self.end():
            raise self._make_error("closed the connection in the middle of its response")

    @property
    def location(self) -> str | None:
        """The target of a redirect; None for other responses."""
        if self.status not in _REDIRECTS:
            return None
        try:
            return self.headers[b"location"].decode()
        except (KeyError, UnicodeDecodeError):
            raise self._make_error("redirects to nowhere")

    @property
    def media_type(self) -> str:
        """The declared media type in lower case, without parameters."""
        return self.headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()

    @property
    def charset(self) -> str:
        """The declared charset, or ""."""
        for parameter in self.headers.get(b"content-type", b"").decode("latin-1").split(";")[1:]:
            name, _, value = parameter.partition("=")
            if name.strip().lower() == "charset":
                return value.strip().strip("\"'").lower()
        return ""

    def body(self) -> bytes:
        """Return the decoded body. Raises FetchFailed for a status other than 200 or a truncated compressed body."""
        if self.status != HTTP_OK:
            raise self._make_error(f"answered with the HTTP status {self.status}")
        if self._zlib is not None and self._encoded_size and not self._zlib.eof:
            raise self._make_error("sent a compressed body that breaks off")
        return b"".join(self._chunks)

    @property
    def _is_unacceptable(self) -> bool:
        return self._too_large or bool(self._fault)

    def _raise_fault(self) -> None:
        if self._too_large:
            raise self._make_size_error()
        if self._fault:
            raise self._make_error(self._fault)

    def _make_size_error(self) -> FetchFailed:
        return FetchFailed(
            f"{self._host} sent more than the {self._max_bytes:,} bytes that are allowed.", param=self._param
        )

    def _make_error(self, reason: str) -> FetchFailed:
        return FetchFailed(f"{self._host} {reason}.", param=self._param)

    # Callbacks of the parser. They must not raise: the parser would turn it into its own error.

    def on_header(self, name: bytes, value: bytes) -> None:
        lower_name = name.lower()
        if self.headers.setdefault(lower_name, value) != value and lower_name in _UNIQUE_HEADERS:
            self._fault = f"sent the header {lower_name.decode()} twice"

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if not self.status:
            return
        encoding = self.headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
        length = self.headers.get(b"content-length", b"0")
        if encoding not in _ENCODINGS:
            self._fault = "sent a body in an encoding that was not asked for"
        elif length.isdigit():
            self._too_large = int(length) > self._max_bytes
        if encoding in ("gzip", "x-gzip"):
            self._zlib = zlib.decompressobj(16 + zlib.MAX_WBITS)
        elif encoding == "deflate":
            self._zlib, self._may_be_raw = zlib.decompressobj(), True

    def on_body(self, body: bytes) -> None:
        if self.status == HTTP_OK and not self._is_unacceptable:
            self._decode(body)

    def _decode(self, data: bytes) -> None:
        is_first, self._encoded_size = not self._encoded_size, self._encoded_size + len(data)
        if self._zlib is None:
            self._append(data)
            return
        if is_first and self._may_be_raw and data[0] & 0x0F != 8:  # many servers omit the zlib header (raw deflate)
            self._zlib = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            while not self._is_unacceptable and (chunk := self._zlib.decompress(data, _DECODE_STEP)):
                data = self._zlib.unconsumed_tail
                self._append(chunk)
        except zlib.error:
            self._fault = "sent a compressed body that cannot be read"

    def _append(self, data: bytes) -> None:
        self._size += len(data)
        self._too_large = self._size > self._max_bytes
        if self._zlib is not None and self._size > max(_RATIO_EXEMPT_BYTES, self._encoded_size * _MAX_RATIO):
            self._fault = "sent a body that swells beyond measure when it is decoded"
        elif not self._too_large:
            self._chunks.append(data)
