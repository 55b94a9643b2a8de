"""The baseline: a bare ASGI application on uvicorn that sends bytes recorded from a real answer.

It reads the request and sends; it creates, checks and encodes nothing. The path of a request selects how the recorded
events are divided into sends:
  /one        one event per send, in a tight loop (the baseline of the ratios)
  /joined     eight events per send, in a tight loop
  /ticking    one event per send, then one iteration of the event loop, as when tokens arrive one by one
  /json       the recorded JSON body, with its length
"""

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn

JOINED = 8

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Headers = list[tuple[bytes, bytes]]

_STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
    (b"x-request-id", b"req_00000000000000000000000000000000"),
]


class RecordedApp:
    """The ASGI application; `stream` and `body` are answers of a real server."""

    def __init__(self, stream: bytes, body: bytes) -> None:
        events = [event + b"\n\n" for event in stream.split(b"\n\n") if event]
        joined = [b"".join(events[at : at + JOINED]) for at in range(0, len(events), JOINED)]
        self._writes = {"/one": events, "/joined": joined, "/ticking": events}
        self._body = body
        self._json_headers: Headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"x-request-id", b"req_00000000000000000000000000000000"),
        ]

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body", False):
            pass
        path: str = scope["path"]
        if path == "/json":
            await send({"type": "http.response.start", "status": 200, "headers": self._json_headers})
            await send({"type": "http.response.body", "body": self._body})
        else:
            await self._stream(self._writes.get(path, []), path == "/ticking", send)

    async def _stream(self, writes: list[bytes], tick: bool, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        for write in writes:
            await send({"type": "http.response.body", "body": write, "more_body": True})
            if tick:
                await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b""})


def main() -> None:
    folder = Path(sys.argv[1])  # with a recorded event stream and a recorded JSON body
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    app = RecordedApp((folder / "stream").read_bytes(), (folder / "json").read_bytes())
    config = uvicorn.Config(
        app, loop="uvloop", http="httptools", ws="none", lifespan="off", access_log=False, log_level="warning"
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
