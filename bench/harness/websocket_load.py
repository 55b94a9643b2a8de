"""The load of `bench/harness/load.py` over WebSockets: the same requests, each answered by a sequence of frames.

A separate process that is controlled in the same way.
"""

import asyncio
from collections.abc import Sequence

from bench.harness.load import Budget, Client, Load, main
from bench.harness.websocket_frames import frame, head_size, payload_size, upgrade

_TOKEN = b'{"type":"response.output_text.delta"'
_COMPLETED = b'{"type":"response.completed"'
_UNWANTED = (b'{"type":"error"', b'{"type":"response.failed"', b'{"type":"response.incomplete"')


class SocketClient(Client):
    """Examines only the heads of frames and the beginning of their payload."""

    def __init__(self, load: Load, requests: Sequence[bytes]) -> None:
        super().__init__(load, requests)
        self._upgrade = upgrade(load.port)
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


if __name__ == "__main__":
    main(SocketClient)
