"""Heads that a connection has seen before: what was read of the first holds for all that differ from it in nothing but
the length of the body.

Clients send the same head with every request. So one that the parser has read is remembered as the bytes that it is,
and where they come again, only the number in their midst is read. What a head means must then depend on nothing else:
one that frames its body in another way, or asks for another protocol, is not remembered.
"""

from typing import Final

from msgspec import Struct

from antiphon.transport.server.http_exchange import Cycle

LENGTH: Final = b"content-length"

_MOST_DIGITS: Final = 15
_MOST_BYTES: Final = 4096
_OTHERS: Final = frozenset({
    b"transfer-encoding", b"upgrade", b"expect",  # say how to go on
    b"x-request-id", b"traceparent", b"idempotency-key",  # are another each time
})  # fmt: skip
_KEPT: Final = b"keep-alive"


class Familiar(Struct, frozen=True):
    before: bytes  # the number
    after: bytes
    method: str
    path: bytes
    query: bytes
    fields: dict[bytes, bytes]
    start: int  # where the number is
    size: int  # of all but the number

    def length_in(self, data: bytes) -> bytes:
        """The number, if `data` begins with such a head; else nothing."""
        if not data.startswith(self.before):
            return b""
        start = self.start
        stop = data.find(self.after, start, self.size + _MOST_DIGITS)
        return length if stop > start and (length := data[start:stop]).isdigit() else b""


def familiar(data: bytes, cycle: Cycle, most: int) -> Familiar | None:
    """Of a request of HTTP/1.1 that the parser made of `data`, from its first byte on, and that others may follow; None
    if it is not to be remembered. `most`: bytes of a head."""
    fields = cycle.fields
    length = fields.get(LENGTH, b"")
    if cycle.repeated or not length.isdigit() or not _OTHERS.isdisjoint(fields):
        return None
    if fields.get(b"connection", _KEPT).lower() != _KEPT:
        return None
    head, end, _ = data[: min(most, _MOST_BYTES) - _MOST_DIGITS].partition(b"\r\n\r\n")
    name = head.lower().find(b"\r\n" + LENGTH + b":")
    if not end or name < 0 or not head.startswith(cycle.method.encode()):
        return None
    start = name + len(LENGTH) + 3
    while head[start : start + 1] in (b" ", b"\t"):
        start += 1
    stop = start + len(length)
    if head[start:stop] != length:
        return None
    before, after = head[:start], head[stop:] + end
    size = len(before) + len(after)
    return Familiar(before, after, cycle.method, cycle.path, cycle.query, fields, start, size)
