"""An engine server with the chat completions API, as a process that can be killed and started again on its port.

It repeats the last message, a few characters at a time. One half of its answers are chunked; the others end with the
connection, so that an answer of a killed server looks complete to HTTP. A request without a nonce is a probe.
"""

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from drills.harness.journal import find_nonce
from tests.engines.unix_server import END, STREAM, http_chunk, json_response, read_request
from tests.support.services import free_port

PIECE_CHARACTERS = 6
PIECE_SECONDS = 0.04
_START_SECONDS = 60.0
_POLL_SECONDS = 0.01
_MODELS = json_response(b'{"object":"list","data":[{"id":"fake","max_model_len":1000000}]}')
_BAD_REQUEST = json_response(b'{"detail":"Bad Request"}', "400 Bad Request")  # shows probes that the endpoint exists
_UNSIZED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


class EngineProcess:
    """The engine server as seen by a drill."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start the process and wait until it listens."""
        command = [sys.executable, "-m", "drills.engines.engine_server", str(self.port)]
        self._process = subprocess.Popen(command)  # noqa: ASYNC220 - starting takes a moment, and no other task waits
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return
            await asyncio.sleep(_POLL_SECONDS)
        raise RuntimeError(f"the engine server did not start (exit {self._process.poll()})")

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(timeout=10)
            self._process = None


@contextlib.contextmanager
def open_engine() -> Iterator[EngineProcess]:
    """Yield an engine server that is not started yet; it ends with this context."""
    engine = EngineProcess()
    try:
        yield engine
    finally:
        engine.kill()


def make_events(text: str) -> list[bytes]:
    """Return the events of an answer with this text."""
    pieces = [text[at : at + PIECE_CHARACTERS] for at in range(0, len(text), PIECE_CHARACTERS)]
    usage = {"prompt_tokens": 1, "completion_tokens": len(pieces), "total_tokens": 1 + len(pieces)}
    return [
        *(_make_event(choices=[{"index": 0, "delta": {"content": piece}, "finish_reason": None}]) for piece in pieces),
        _make_event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}]),
        _make_event(choices=[], usage=usage),
        b"data: [DONE]\n\n",
    ]


def _make_event(**fields: Any) -> bytes:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "fake"}
    return b"data: %b\n\n" % msgspec.json.encode({**head, **fields})


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, EOFError):
        while await _answer(await read_request(reader), writer):
            pass
    writer.close()


async def _answer(request: bytes, writer: asyncio.StreamWriter) -> bool:
    """Answer one request; return whether the connection stays open."""
    path, _, body = request.partition(b" ")
    nonce = find_nonce(body)
    if not nonce:
        writer.write(_MODELS if path.endswith(b"/models") else _BAD_REQUEST)
        return True
    is_chunked = int(nonce[-1], 16) % 2 == 0
    writer.write(STREAM if is_chunked else _UNSIZED)
    for event in make_events(f"You said: {msgspec.json.decode(body)['messages'][-1]['content']}"):
        writer.write(http_chunk(event) if is_chunked else event)
        await writer.drain()
        await asyncio.sleep(PIECE_SECONDS)
    if is_chunked:
        writer.write(END)
    return is_chunked


async def _run(port: int) -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_run(int(sys.argv[1])))
