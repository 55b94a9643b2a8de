"""A fake engine that costs less than any server in front of it: prebuilt bytes on a raw asyncio protocol.

It serves chat completions and Responses. The name of the requested model selects the answer:
  one, joined   tokens as fast as they are read, one or several per write
  paced         a token every 20 ms, whose text is its send time in µs
  held          one token, then nothing for a minute
  first         one token, a pause, a few more: for the time to the first token
  brief         a few tokens in one write
A request without `stream` gets one JSON body. `python -m bench.harness.upstream` prints its address.
"""

import asyncio
import socket
import sys
import time
from typing import cast

import uvloop

from bench.harness.canned_answers import CannedAnswer, make_answers, make_chunk, make_json_reply, make_models_reply

_GOLDEN = 0.618034  # spreads the phases of streams that begin together
_HIGH_WATER = 64 * 1024


class FakeEngineProtocol(asyncio.Protocol):
    """One connection with sequential requests."""

    streams = 0  # paced streams started so far, on all connections

    def __init__(self, answers: dict[bytes, dict[bytes, CannedAnswer]]) -> None:
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self._received = b""
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
        head, gap, body = self._received.partition(b"\r\n\r\n")
        if gap and len(body) >= (length := _content_length(head)):
            self._received = body[length:]
            self._reply(head.split(b" ", 2)[1], body[:length])

    def _reply(self, path: bytes, body: bytes) -> None:
        if path in self._answers:
            self._start_answer(path, body)
        elif path == b"/v1/models":
            self._transport.write(make_json_reply(make_models_reply()))
        else:
            self._transport.write(make_json_reply(b"{}"))

    def _start_answer(self, path: bytes, body: bytes) -> None:
        model = body.partition(b'"model":"')[2].partition(b'"')[0]
        answer = self._answers[path][model]
        if b'"stream":true' not in body:
            self._transport.write(answer.json_reply)
            return
        self._answer, self._next = answer, 0
        self._transport.write(answer.head)
        if not answer.pace:
            self._write_next()
        elif answer.stamp is None:
            self._due = self._loop.time()
            self._write_paced()
        else:
            FakeEngineProtocol.streams += 1
            self._due = self._loop.time() + FakeEngineProtocol.streams * _GOLDEN % 1 * answer.pace
            self._loop.call_at(self._due, self._write_paced)

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
            self._transport.write(answer.writes[self._next])
            self._next += 1
            self._loop.call_soon(self._write_next)
        else:
            self._transport.write(answer.end)

    def _write_paced(self) -> None:
        answer = self._answer
        if answer is None or self._closed:
            return
        if self._next == len(answer.writes):
            self._transport.write(answer.end)
            return
        data = answer.writes[self._next]
        if answer.stamp is not None:
            before, after = answer.stamp
            data = make_chunk(b"%b %d%b" % (before, time.perf_counter_ns() // 1000, after))
        self._transport.write(data)
        self._next += 1
        self._due += answer.pace
        self._loop.call_at(self._due, self._write_paced)


def _content_length(head: bytes) -> int:
    found = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
    return int(found) if found else 0


async def _serve(listener: socket.socket) -> None:
    canned = make_answers()
    server = await asyncio.get_running_loop().create_server(lambda: FakeEngineProtocol(canned), sock=listener)
    sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(socket.create_server(("127.0.0.1", 0), backlog=2048)))
