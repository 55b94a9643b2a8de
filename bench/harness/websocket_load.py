"""The load of `bench/harness/load.py` over WebSockets: the same requests, each answered by a sequence of frames.

A separate process that is controlled in the same way.
"""

import asyncio
from collections.abc import Sequence

from bench.harness.load import Budget, Client, Load, main

_TOKEN = b'{"type":"response.output_text.delta"'
_COMPLETED = b'{"type":"response.completed"'
_UNWANTED = (b'{"type":"error"', b'{"type":"response.failed"', b'{"type":"response.incomplete"')


class SocketClient(Client):
    """Examines only the heads of frames and the beginning of their payload."""

    def __init__(self, load: Load, requests: Sequence[bytes]) -> None:
        super().__init__(load, requests)
        self._upgrade = upgrade(load.path, load.port)
        self._open = asyncio.get_running_loop().create_future()

    @staticmethod
    def render(load: Load, body: bytes) -> bytes:
        return frame(b'{"type":"response.create",' + body[1:])

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._transport.write(self._upgrade)

    async def send_all(self, budget: Budget, connecting_since: int = 0) -> None:
        await self._open
        await super().send_all(budget, connecting_since)

    def data_received(self, data: bytes) -> None:
        if not self._open.done():
            self._handle_upgrade(data)
            return
        received, at = self._tail + data, 0
        while (start := at + head_size(received, at)) <= len(received):
            end = start + payload_size(received, at)
            if end > len(received):
                break
            self._handle_event(received, start)
            at = end
        self._tail = received[at:]

    def _handle_upgrade(self, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1 101") and data.endswith(b"\r\n\r\n"):
            self._open.set_result(None)
        else:
            self._open.set_exception(RuntimeError(f"not upgraded: {data[:500]!r}"))

    def _handle_event(self, received: bytes, start: int) -> None:
        if received.startswith(_TOKEN, start):
            self.tokens += 1
        elif received.startswith(_COMPLETED, start):
            self._finish_answer()
        elif received.startswith(_UNWANTED, start):
            self._fail(f"a response did not complete: {received[start : start + 300]!r}")


def upgrade(path: str, port: int) -> bytes:
    lines = f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Connection: Upgrade", "Upgrade: websocket"
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


if __name__ == "__main__":
    main(SocketClient)
