"""A WebSocketProtocol without a server or a network, on a transport that records the calls."""

import asyncio
from typing import Any, cast

from uvicorn.server import ServerState

from antiphon.http_server.settings import ConnectionLimits, HttpServerSettings
from antiphon.http_server.ws_protocol import WebSocketProtocol
from tests.http_server import recording_transport as transports


class RecordingWebSocketTransport(transports.RecordingTransport):
    """A recording transport with the methods that WebSocketProtocol calls."""

    def __init__(self) -> None:
        super().__init__()
        self.unread_bytes = 0  # in the write buffer
        self.aborted = False
        self.is_reading = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def get_extra_info(self, name: str) -> Any:
        return None


async def _no_app(scope: Any, receive: Any, send: Any) -> None: ...


def make_protocol(transport: RecordingWebSocketTransport, app: Any = None, **limits: Any) -> WebSocketProtocol:
    """Make a protocol that is connected to `transport`. Needs a running event loop."""
    settings = HttpServerSettings(app or _no_app, ConnectionLimits(**limits), lifespan="off")
    settings.load()
    protocol = WebSocketProtocol(settings, ServerState(), {})
    protocol.connection_made(cast(asyncio.Transport, transport))
    return protocol
