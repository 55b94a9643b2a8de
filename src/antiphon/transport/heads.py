"""The heads of replies, as bytes. What the server says in each of them is put together once a second at most."""

from collections.abc import Sequence
from http import HTTPStatus

from antiphon.transport.line import Header

_CONTROLS = bytes(byte for byte in (*range(0x20), 0x7F) if byte != ord("\t"))


class Heads:
    def __init__(self) -> None:
        self._own: Sequence[Header] = ()
        self._begun: dict[int, bytes] = {}  # by status, with the server's own headers

    def make(self, status: int, own: Sequence[Header], headers: Sequence[Header], body: bytes = b"") -> bytes:
        """And what follows it. `own`: the server's, another list whenever they change. Raises ValueError for what would
        be no header."""
        if own is not self._own:
            self._own, self._begun = own, {}
        begun = self._begun.get(status) or self._begin(status)
        head = b"\r\n".join([begun, *map(b": ".join, headers)])
        # Two bytes before each header, and no others: else a value could end its header and begin another.
        if len(head.translate(None, _CONTROLS)) != len(head) - 2 * (len(own) + len(headers)):
            raise ValueError("A header of a reply has control characters in it.")
        return b"%b\r\n\r\n%b" % (head, body)

    def _begin(self, status: int) -> bytes:
        line = b"HTTP/1.1 %d %b" % (status, HTTPStatus(status).phrase.encode())
        self._begun[status] = begun = b"\r\n".join([line, *map(b": ".join, self._own)])
        return begun
