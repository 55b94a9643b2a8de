"""A fake engine that costs less than any server in front of it: prebuilt bytes on a raw asyncio protocol.

It serves chat completions and Responses. The name of the requested model selects the answer:
  brief, short, medium, long   8, 64, 128 or 256 tokens as fast as they are read, one per write
  paced                        a token every 20 ms, whose text is its send time in µs
  held                         one token, then nothing for a minute
A request without `stream` gets one JSON body. Every Response has its own id, since gateways store it under that id.
`python -m bench.harness.upstream PORT` prints its address; several processes can share a port, 0 selects a free one.
"""

import asyncio
import itertools
import os
import socket
import sys
import time
from typing import cast

import uvloop

from bench.harness.canned_answers import (
    RESPONSE_ID,
    RESPONSES,
    CannedAnswer,
    make_answers,
    make_chunk,
    make_json_reply,
    make_models_reply,
)

_GOLDEN = 0.618034  # spreads the phases of streams that begin together
_HIGH_WATER = 64 * 1024


class FakeEngineProtocol(asyncio.Protocol):
    """One connection with sequential requests."""

    streams = 0  # paced streams started so far, on all connections
    ids = itertools.count()

    def __init__(self, answers: dict[bytes, dict[bytes, CannedAnswer]]) -> None:
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._body_at = self._needed = 0  # of the request that is being received, once its head is complete
        self._id = b""  # replaces that of the prebuilt bytes, if there is one
        self._answer: CannedAnswer | None = None
        self._next = 0
        self._due = 0.0
        self._closed = self._paused = self._write_pending = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._write_pending:
            self._write_pending = False
            self._write_next()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._needed and (end := self._received.find(b"\r\n\r\n")) >= 0:
            self._body_at = end + 4
            self._needed = self._body_at + _content_length(bytes(self._received[:end]))
        if self._needed and len(self._received) >= self._needed:
            request = bytes(self._received[: self._needed])
            del self._received[: self._needed]
            self._needed = 0
            self._reply(request.split(b" ", 2)[1], request)

    def _reply(self, path: bytes, request: bytes) -> None:
        if path in self._answers:
            self._start_answer(path, request)
        elif path == b"/v1/models":
            self._transport.write(make_json_reply(make_models_reply()))
        else:
            self._transport.write(make_json_reply(b"{}"))

    def _start_answer(self, path: bytes, request: bytes) -> None:
        start = request.index(b'"model":"', self._body_at) + len(b'"model":"')
        answer = self._answers[path][request[start : request.index(b'"', start)]]
        self._id = b"%08x%08x%016x" % (os.getpid(), next(self.ids), 0) if path == RESPONSES else b""
        if request.find(b'"stream":true', self._body_at) < 0:
            self._write(answer.json_reply)
            return
        self._answer, self._next = answer, 0
        self._write(answer.head)
        if not answer.pace:
            self._write_next()
        elif answer.stamp is None:
            self._due = self._loop.time()
            self._write_paced()
        else:
            FakeEngineProtocol.streams += 1
            self._due = self._loop.time() + FakeEngineProtocol.streams * _GOLDEN % 1 * answer.pace
            self._loop.call_at(self._due, self._write_paced)

    def _write(self, data: bytes) -> None:
        self._transport.write(data.replace(RESPONSE_ID, self._id) if self._id else data)

    def _write_next(self) -> None:
        """Write as fast as the client reads; each write has its own iteration of the event loop, so that writes are not
        merged.
        """
        answer = self._answer
        if answer is None or self._closed:
            return
        if self._paused:
            self._write_pending = True
            return
        if self._next < len(answer.writes):
            self._write(answer.writes[self._next])
            self._next += 1
            self._loop.call_soon(self._write_next)
        else:
            self._write(answer.end)

    def _write_paced(self) -> None:
        answer = self._answer
        if answer is None or self._closed:
            return
        if self._next == len(answer.writes):
            self._write(answer.end)
            return
        data = answer.writes[self._next]
        if answer.stamp is not None:
            before, after = answer.stamp
            data = make_chunk(b"%b %d%b" % (before, time.perf_counter_ns() // 1000, after))
        self._write(data)
        self._next += 1
        self._due += answer.pace
        self._loop.call_at(self._due, self._write_paced)


def _content_length(head: bytes) -> int:
    found = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
    return int(found) if found else 0


async def _serve(port: int) -> None:
    canned = make_answers()
    listener = socket.create_server(("127.0.0.1", port), backlog=4096, reuse_port=True)
    server = await asyncio.get_running_loop().create_server(lambda: FakeEngineProtocol(canned), sock=listener)
    sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
