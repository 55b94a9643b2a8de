"""The client side of HTTP/1.1 without I/O: a response from received bytes (RFC 9112).

httptools checks and removes the framing. This module adds what it leaves to its user: the size of the head, interim
responses, bodies that end with the connection, data that belongs to no request, and whether the connection may be used
again. What is done with the body is up to the subclass.
"""

import httptools

MAX_HEAD_BYTES = 64 * 1024
HTTP_OK = 200
_LENGTH_HEADERS = frozenset({b"content-length", b"transfer-encoding"})


class InvalidResponse(Exception):
    """The received bytes are not an acceptable response. The message completes a sentence about the sender."""


class HttpResponseReader:
    """Reads one response after the other. A subclass has the callbacks `on_header` and `on_body`, which must not raise.

    `status` is 0 until all headers have arrived. `reusable`: the response is complete and another request may follow.
    """

    __slots__ = ("_expected", "_feed", "_parser", "complete", "headers", "on_message_begin", "received", "reusable",
                 "status")  # fmt: skip

    def __init__(self, headers: dict[bytes, bytes]) -> None:
        """`headers` is filled by `on_header`."""
        self.headers = headers
        self.complete, self.reusable = True, False  # no request is pending
        self.status = self.received = 0
        # One entry per expected response: an unexpected one raises IndexError in the parser. The callback is a bound
        # method of the list, because a Python function would cost more than its work.
        self._expected: list[None] = []
        self.on_message_begin = self._expected.pop
        self._parser = httptools.HttpResponseParser(self)
        self._feed = self._parser.feed_data

    def expect_response(self) -> None:
        """Prepare for the response of a request that is about to be sent."""
        self.complete = self.reusable = False
        self.status = self.received = 0
        self.headers.clear()
        self._expected.append(None)

    def feed(self, data: bytes) -> None:
        """Parse received bytes. Raises InvalidResponse."""
        if not self.status and len(data) > (room := MAX_HEAD_BYTES - self.received):
            self.feed(data[:room])  # the limit must not depend on how the data is cut
            if not self.status:
                raise InvalidResponse("sent response headers that exceed the size limit")
            data = data[room:]
        self.received += len(data)
        try:
            self._feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.complete:
                raise InvalidResponse(f"sent invalid HTTP: {error}") from None
            self.reusable = False  # invalid data or a second response follows; the first response itself is valid

    def end(self) -> bool:
        """Handle the end of the connection. Returns whether the response is complete."""
        self.reusable = False
        # Without a declared length, a body ends with the connection (section 6.3, rule 8).
        if self.status and not any(name.lower() in _LENGTH_HEADERS for name in self.headers):
            self.complete = True
        return self.complete

    def get_header(self, name: bytes) -> bytes:
        """Return the value of a header by its lower-case name; empty if it is missing."""
        return next((value for key, value in self.headers.items() if key.lower() == name), b"")

    # Callbacks of the parser.

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < HTTP_OK:  # an interim response precedes the final one (RFC 9110, section 15.2)
            self._expected.append(None)
            self.headers.clear()
        else:
            self.status = status

    def on_message_complete(self) -> None:
        if self.status:
            self.complete, self.reusable = True, self._parser.should_keep_alive()
