"""Who offers another protocol than HTTP/1.1 gets a WebSocket, or is answered in this one as if there were no other."""

from collections.abc import Sequence

from antiphon.transport.line import Header


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
