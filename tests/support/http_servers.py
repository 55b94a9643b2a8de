"""Real HTTP servers between a test and the application, in the process of the test: our own, and uvicorn.

`ThroughServer(app, "uvicorn")` is called as the application is, and sends the request over a socket.
"""

import asyncio
import socket
from typing import Any, Literal

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from antiphon.http_server.http_protocol import HttpProtocol
from antiphon.http_server.settings import HttpServerSettings

ServerKind = Literal["own", "uvicorn"]

_MISSING_LENGTH = b"transfer-encoding: chunked\r\n"


class ThroughServer:
    """Calls an ASGI application through a server, whose tasks have ended and sockets are closed when the call returns.

    Sockets that are open when the event loop ends would be reported in the middle of an unrelated test.
    """

    def __init__(self, app: Any, kind: ServerKind) -> None:
        self._app = app
        self._kind = kind

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        state, (near, far) = ServerState(), socket.socketpair()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_accepted_socket(lambda: make_protocol(self._app, self._kind, state), far)
        reader, writer = await asyncio.open_connection(sock=near)
        sending = asyncio.ensure_future(_send_request(scope, receive, writer))
        try:
            await _ResponseReader(scope["method"]).forward(reader, send)
        finally:
            writer.transport.abort()
            sending.cancel()
            try:
                await asyncio.wait([sending])
                while state.tasks:
                    await asyncio.wait([*state.tasks])
            finally:
                transport.abort()
                await asyncio.sleep(0)  # a transport closes its socket in the next turn of the event loop


def make_protocol(app: Any, kind: ServerKind, state: ServerState) -> asyncio.Protocol:
    if kind == "own":
        return HttpProtocol(HttpServerSettings(app, lifespan="off"), state, {})
    config = uvicorn.Config(app, http="httptools", lifespan="off", log_config=None, access_log=False)
    config.load()
    return HttpToolsProtocol(config, state, {})


async def _send_request(scope: Any, receive: Any, writer: asyncio.StreamWriter) -> None:
    """Send the request line, the headers and the body; disconnect when `receive` says so."""
    query = b"?" + scope["query_string"] if scope["query_string"] else b""
    lines = [b"%b: %b\r\n" % header for header in scope["headers"]]
    has_length = bool({b"content-length", b"transfer-encoding"} & {name for name, _ in scope["headers"]})
    message = await receive()
    is_chunked = not has_length and bool(message.get("body") or message.get("more_body"))
    lines += [_MISSING_LENGTH] if is_chunked else []
    target = scope["raw_path"] + query
    writer.write(b"%b %b HTTP/1.1\r\n%b\r\n" % (scope["method"].encode(), target, b"".join(lines)))
    while message["type"] == "http.request":
        piece = message.get("body", b"")
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked and piece else piece)
        if is_chunked and not message.get("more_body", False):
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        message = await receive()
    writer.transport.abort()


class _ResponseReader:
    """Parses a response into the messages of an application."""

    def __init__(self, method: str) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._has_body = method != "HEAD"
        self._headers: list[tuple[bytes, bytes]] = []
        self._messages: list[dict[str, Any]] = []
        self._is_interim = False
        self._complete = False

    async def forward(self, reader: asyncio.StreamReader, send: Any) -> None:
        while not self._complete:
            try:
                data = await reader.read(65536)
            except ConnectionError:
                return
            if not data:
                return
            self._parser.feed_data(data)
            messages, self._messages = self._messages, []
            for message in messages:
                await send(message)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._is_interim = status < 200
        headers, self._headers = self._headers, []
        if not self._is_interim:
            own = (b"date", b"server", b"transfer-encoding")
            kept = [header for header in headers if header[0] not in own]
            self._messages.append({"type": "http.response.start", "status": status, "headers": kept})
            if not self._has_body:
                self._finish()

    def on_body(self, piece: bytes) -> None:
        self._messages.append({"type": "http.response.body", "body": piece, "more_body": True})

    def on_message_complete(self) -> None:
        if not self._is_interim and not self._complete:
            self._finish()

    def _finish(self) -> None:
        self._complete = True
        self._messages.append({"type": "http.response.body", "body": b"", "more_body": False})
