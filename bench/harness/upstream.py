"""A fake engine that costs less than any server in front of it: bytes made beforehand, on a raw asyncio protocol.

It speaks chat completions and Responses. How it answers is the name of the model that is asked for:
  one, joined   tokens as fast as they are taken, one or several per write
  paced         a token every 20 ms; what it says is when it was written, in µs
  held          a token, and nothing more for a minute
  first         a token, a pause, a few more: for the time to the first of them
  brief         a few tokens at once
A request without `stream` gets one JSON body. `python -m bench.harness.upstream` says where it listens.
"""

import asyncio
import socket
import sys
import time
from typing import cast

import uvloop

from bench.harness.canned_answers import Answer, answers, chunk, json_reply, models_reply

_GOLDEN = 0.618034  # streams that began together do not speak together
_HIGH_WATER = 64 * 1024


class Upstream(asyncio.Protocol):
    """One connection, and its requests one after the other."""

    streams = 0  # that were begun, on all connections

    def __init__(self, answers: dict[bytes, dict[bytes, Answer]]) -> None:
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._answer: Answer | None = None
        self._next = 0
        self._due = 0.0
        self._gone = self._paused = self._late = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)

    def connection_lost(self, error: Exception | None) -> None:
        self._gone = True

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._late:
            self._late = False
            self._go_on()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, gap, body = self._received.partition(b"\r\n\r\n")
        if gap and len(body) >= (length := _length(head)):
            self._received = body[length:]
            self._reply(head.split(b" ", 2)[1], body[:length])

    def _reply(self, path: bytes, body: bytes) -> None:
        if path in self._answers:
            self._begin(path, body)
        elif path == b"/v1/models":
            self._transport.write(json_reply(models_reply()))
        else:
            self._transport.write(json_reply(b"{}"))

    def _begin(self, path: bytes, body: bytes) -> None:
        model = body.partition(b'"model":"')[2].partition(b'"')[0]
        answer = self._answers[path][model]
        if b'"stream":true' not in body:
            self._transport.write(answer.whole)
            return
        self._answer, self._next = answer, 0
        self._transport.write(answer.head)
        if not answer.pace:
            self._go_on()
        elif answer.stamp is None:
            self._due = self._loop.time()
            self._tick()
        else:
            Upstream.streams += 1
            self._due = self._loop.time() + Upstream.streams * _GOLDEN % 1 * answer.pace
            self._loop.call_at(self._due, self._tick)

    def _go_on(self) -> None:
        """As fast as it is taken; each write is one of its own, since each has a turn of the loop."""
        answer = self._answer
        if answer is None or self._gone:
            return
        if self._paused:
            self._late = True
            return
        if self._next < len(answer.writes):
            self._transport.write(answer.writes[self._next])
            self._next += 1
            self._loop.call_soon(self._go_on)
        else:
            self._transport.write(answer.end)

    def _tick(self) -> None:
        answer = self._answer
        if answer is None or self._gone:
            return
        if self._next == len(answer.writes):
            self._transport.write(answer.end)
            return
        written = answer.writes[self._next]
        if answer.stamp is not None:
            before, after = answer.stamp
            written = chunk(b"%b %d%b" % (before, time.perf_counter_ns() // 1000, after))
        self._transport.write(written)
        self._next += 1
        self._due += answer.pace
        self._loop.call_at(self._due, self._tick)


def _length(head: bytes) -> int:
    found = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
    return int(found) if found else 0


async def _serve(listener: socket.socket) -> None:
    made = answers()
    server = await asyncio.get_running_loop().create_server(lambda: Upstream(made), sock=listener)
    sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(socket.create_server(("127.0.0.1", 0), backlog=2048)))
