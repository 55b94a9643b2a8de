"""Cached request heads: a parsed head is reused for requests that differ from it in nothing but the Content-Length.

Clients send the same head with every request of a connection. So the bytes of a parsed head are retained; where they
come again, only the number in their midst is parsed. The interpretation of a head must then depend on nothing else:
heads that frame their body in another way, or offer another protocol, are not cached.
"""

from typing import Final

from msgspec import Struct

from antiphon.transport.server.http_exchange import HttpExchange

LENGTH: Final = b"content-length"

_MAX_LENGTH_DIGITS: Final = 15
_MAX_HEAD_BYTES: Final = 4096
_UNCACHEABLE: Final = frozenset({
    b"transfer-encoding", b"upgrade", b"expect",  # change how the connection is read
    b"x-request-id", b"traceparent", b"idempotency-key",  # differ with each request
})  # fmt: skip
_KEEP_ALIVE: Final = b"keep-alive"


class HeadCache(Struct, frozen=True):
    """A parsed head, as the bytes before and behind its Content-Length value."""

    prefix: bytes  # bytes up to the value
    suffix: bytes
    method: str
    path: bytes
    query: bytes
    fields: dict[bytes, bytes]
    length_at: int  # offset of the value
    fixed_size: int  # bytes of the head without the value

    def match_length(self, data: bytes) -> bytes:
        """Return the Content-Length value if `data` begins with this head, else nothing."""
        if not data.startswith(self.prefix):
            return b""
        start = self.length_at
        stop = data.find(self.suffix, start, self.fixed_size + _MAX_LENGTH_DIGITS)
        return length if stop > start and (length := data[start:stop]).isdigit() else b""


def cache_head(data: bytes, exchange: HttpExchange, max_bytes: int) -> HeadCache | None:
    """Cache the head of a request, or return None if it must not be reused.

    `data`: the bytes that the parser read it from, from its first byte on. The request is HTTP/1.1, and others may
    follow it on the connection. `max_bytes`: limit of a head.
    """
    fields = exchange.fields
    length = fields.get(LENGTH, b"")
    if exchange.repeated or not length.isdigit() or not _UNCACHEABLE.isdisjoint(fields):
        return None
    if fields.get(b"connection", _KEEP_ALIVE).lower() != _KEEP_ALIVE:
        return None
    head, end, _ = data[: min(max_bytes, _MAX_HEAD_BYTES) - _MAX_LENGTH_DIGITS].partition(b"\r\n\r\n")
    name = head.lower().find(b"\r\n" + LENGTH + b":")
    if not end or name < 0 or not head.startswith(exchange.method.encode()):
        return None
    start = name + len(LENGTH) + 3
    while head[start : start + 1] in (b" ", b"\t"):
        start += 1
    stop = start + len(length)
    if head[start:stop] != length:
        return None
    prefix, suffix = head[:start], head[stop:] + end
    size = len(prefix) + len(suffix)
    return HeadCache(prefix, suffix, exchange.method, exchange.path, exchange.query, fields, start, size)
