"""The frames and the upgrade request of a WebSocket client (RFC 6455)."""


def upgrade(port: int) -> bytes:
    lines = "GET /v1/responses HTTP/1.1", f"Host: 127.0.0.1:{port}", "Connection: Upgrade", "Upgrade: websocket"
    key = "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    return "\r\n".join([*lines, *key, "", ""]).encode()


def frame(text: bytes) -> bytes:
    """Return a client's frame with a mask of zeros, which changes nothing but still has to be applied by the server."""
    if len(text) < 126:
        head = bytes((0x81, 0x80 | len(text)))
    elif len(text) < 1 << 16:
        head = b"\x81\xfe" + len(text).to_bytes(2, "big")
    else:
        head = b"\x81\xff" + len(text).to_bytes(8, "big")
    return head + bytes(4) + text


def head_size(received: bytes, at: int) -> int:
    """Return the size of the frame's head at `at`; if it has not arrived completely, more than the received bytes."""
    return {126: 4, 127: 10}.get(received[at + 1], 2) if at + 1 < len(received) else 2


def payload_size(received: bytes, at: int) -> int:
    size = received[at + 1]
    return size if size < 126 else int.from_bytes(received[at + 2 : at + head_size(received, at)], "big")
