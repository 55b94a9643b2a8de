"""A wire without a server or a network: its transport remembers what was done to it."""

import asyncio
from typing import Any, cast

from uvicorn.server import ServerState

from antiphon.config import Config
from antiphon.transport.server.settings import ServerSettings
from antiphon.transport.server.ws_protocol import Wire
from tests.transport.server import recording_transport as transports


class Transport(transports.Transport):
    """What a transport is for a wire."""

    def __init__(self) -> None:
        super().__init__()
        self.unread = 0  # bytes
        self.aborted = False
        self.reads = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def get_write_buffer_size(self) -> int:
        return self.unread

    def get_extra_info(self, name: str) -> Any:
        return None


def new_wire(transport: Transport, app: Any = None, **settings: Any) -> Wire:
    """To be used within a running event loop."""
    given = ServerSettings(app or (lambda: None), Config(**settings), None, Wire, lambda status: None)
    given.load()
    wire = Wire(given, ServerState(), {})
    wire.connection_made(cast(asyncio.Transport, transport))
    return wire
