"""The load of bench/harness/load.py over WebSockets: the same requests, each answered by a row of frames.

A process of its own, told what to do in the same way.
"""

import asyncio
import sys

import msgspec
import uvloop

from bench.harness.load import Client, Load, run
from bench.harness.turns import frame, head_size, payload_size, upgrade

_TOKEN = b'{"type":"response.output_text.delta"'
_COMPLETED = b'{"type":"response.completed"'
_UNWANTED = (b'{"type":"error"', b'{"type":"response.failed"', b'{"type":"response.incomplete"')


class SocketClient(Client):
    """Looks at the heads of frames and at how what is in them begins."""

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self._request = frame(b'{"type":"response.create",' + load.body.encode()[1:])
        self._upgrade = upgrade(load.port)
        self._open = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._transport.write(self._upgrade)

    async def ask(self, times: int) -> None:
        await self._open
        await super().ask(times)

    def data_received(self, data: bytes) -> None:
        if not self._open.done():
            self._opened(data)
            return
        heard, at = self._tail + data, 0
        while (start := at + head_size(heard, at)) <= len(heard):
            end = start + payload_size(heard, at)
            if end > len(heard):
                break
            self._take(heard, start)
            at = end
        self._tail = heard[at:]

    def _opened(self, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1 101") and data.endswith(b"\r\n\r\n"):
            self._open.set_result(None)
        else:
            self._open.set_exception(RuntimeError(f"not upgraded: {data[:500]!r}"))

    def _take(self, heard: bytes, start: int) -> None:
        if heard.startswith(_TOKEN, start):
            self.tokens += 1
        elif heard.startswith(_COMPLETED, start):
            self._answered()
        elif heard.startswith(_UNWANTED, start):
            self._fail(f"a response did not complete: {heard[start : start + 300]!r}")


if __name__ == "__main__":
    uvloop.run(run(msgspec.json.decode(sys.argv[1], type=Load), SocketClient))
