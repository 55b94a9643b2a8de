"""Renders the heads of responses. The part that all of a status share is rendered at most once a second."""

from collections.abc import Sequence
from http import HTTPStatus

from antiphon.http_server.request_parser import Header

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_CONTROLS = bytes(byte for byte in (*range(0x20), 0x7F) if byte != ord("\t"))


class ResponseHeads:
    """Renders the heads of responses, and caches the part that the server's default headers determine."""

    def __init__(self) -> None:
        self._default_headers: Sequence[Header] = ()
        self._prefixes: dict[int, bytes] = {}  # by status: status line and default headers

    def render(self, status: int, defaults: Sequence[Header], headers: Sequence[Header]) -> bytes:
        """Render a head.

        `defaults`: the server's own headers, a new list whenever they change. Raises ValueError for control characters.
        """
        if defaults is not self._default_headers:
            self._default_headers, self._prefixes = defaults, {}
        prefix = self._prefixes.get(status) or self._render_prefix(status)
        head = b"\r\n".join([prefix, *map(b": ".join, headers)])
        # The only control bytes are the CR LF before each header: any other could start another header (RFC 9110 §5.5).
        if len(head.translate(None, _CONTROLS)) != len(head) - 2 * (len(defaults) + len(headers)):
            raise ValueError("A response header contains control characters.")
        return head + b"\r\n\r\n"

    def _render_prefix(self, status: int) -> bytes:
        phrase = _PHRASES.get(status, "")  # optional (RFC 9112 §4), so a status may be unknown
        line = b"HTTP/1.1 %d %b" % (status, phrase.encode())
        self._prefixes[status] = prefix = b"\r\n".join([line, *map(b": ".join, self._default_headers)])
        return prefix
