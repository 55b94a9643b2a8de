"""Writes the events of one response on a WebSocket: directly to the socket on our own server, else through ASGI."""

from typing import Protocol

from antiphon.protocol.types.events import Event, Keepalive
from antiphon.transport.server.asgi_channel import Send
from antiphon.transport.server.ws_protocol import WebSocketProtocol
from antiphon.transport.streaming.event_writer import BatchingWriter, EventWriter
from antiphon.transport.streaming.legacy_events import LegacyStream
from antiphon.transport.websocket.frames import encode_frames, encode_texts


class WebSocketEventWriter(EventWriter[Event], Protocol):
    """An EventWriter that can send keep-alives."""

    def send_keepalive(self) -> None:
        """Send a keep-alive after the last event, if the client reads. It repeats the number of that event."""


def open_websocket_writer(send: Send, lane: str | None, legacy: LegacyStream | None = None) -> WebSocketEventWriter:
    """Make a writer for one response. `legacy`: converts its events for older clients."""
    protocol = getattr(send, "__self__", None)
    return (
        _DirectWriter(protocol, lane, legacy)
        if isinstance(protocol, WebSocketProtocol)
        else _AsgiWriter(send, lane, legacy)
    )


class _DirectWriter(BatchingWriter[Event]):
    """Writes frames to the socket of our own server."""

    def __init__(self, protocol: WebSocketProtocol, lane: str | None, legacy: LegacyStream | None) -> None:
        super().__init__(protocol)
        self._protocol = protocol
        self._lane = lane
        self._legacy = legacy

    def write(self, events: list[Event]) -> None:
        converted = events if self._legacy is None else self._legacy.convert(events)
        self._protocol.write(encode_frames([*converted], self._lane))

    def send_keepalive(self) -> None:
        if self.last is None or self._protocol.write_paused:
            return
        if self._legacy is None:
            self.write([Keepalive(sequence_number=self.last.sequence_number)])
        else:
            self._protocol.write(encode_frames([self._legacy.make_keepalive(self.last)], self._lane))

    async def end(self) -> None:
        self.flush()


class _AsgiWriter:
    """Sends each event as an ASGI message."""

    def __init__(self, send: Send, lane: str | None, legacy: LegacyStream | None) -> None:
        self.last: Event | None = None
        self._send = send
        self._lane = lane
        self._legacy = legacy

    async def emit(self, events: list[Event]) -> None:
        self.last = events[-1]
        converted = events if self._legacy is None else self._legacy.convert(events)
        for text in encode_texts([*converted], self._lane):
            await self._send({"type": "websocket.send", "text": text.decode()})

    def send_keepalive(self) -> None:
        """Do nothing: such a server sends pings of its own, and a timer cannot await the message."""

    async def end(self) -> None:
        """Do nothing: each event was sent as a message."""
