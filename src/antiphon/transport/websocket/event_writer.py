"""Writes the events of one response on a WebSocket, on any server.

Each event is a text message: one JSON object, tagged with the name of the lane, if any. Events that are ready together
go in one write, as in a stream of server-sent events.
"""

from typing import Any

import msgspec
from msgspec import Struct

from antiphon.protocol.types.events import Event, Keepalive
from antiphon.transport.http.websocket_upgrade import WebSocketUpgrade
from antiphon.transport.streaming.event_writer import EventWriter
from antiphon.transport.streaming.legacy_events import LegacyStream

_encode_lines = msgspec.json.Encoder().encode_lines


class WebSocketEventWriter(EventWriter[Event]):
    """Writes the events of one response. `legacy`: converts them for older clients."""

    def __init__(self, request: WebSocketUpgrade, lane: str | None, legacy: LegacyStream | None = None) -> None:
        self._direct: Any = request.channel.direct
        super().__init__(self._direct)
        self._send = request.send
        self._lane = lane
        self._legacy = legacy

    def write(self, events: list[Event]) -> None:
        if converted := self._convert(events):
            self._direct.write_texts(encode_texts([*converted], self._lane))

    async def send(self, events: list[Event]) -> None:
        if converted := self._convert(events):
            for text in encode_texts([*converted], self._lane):
                await self._send({"type": "websocket.send", "text": text.decode()})

    async def send_keepalive(self) -> None:
        """Send a keep-alive after the last event, if the client reads. It repeats the number of that event."""
        if self.last is None or (self._direct is not None and self._direct.write_paused):
            return
        if self._legacy is None:
            keepalive: Event = Keepalive(sequence_number=self.last.sequence_number)
        else:
            keepalive = self._legacy.make_keepalive(self.last)
        texts = encode_texts([keepalive], self._lane)
        if self._direct is None:
            await self._send({"type": "websocket.send", "text": texts[0].decode()})
        else:
            self._direct.write_texts(texts)

    async def end(self) -> None:
        self.flush()

    def _convert(self, events: list[Event]) -> list[Event]:
        return events if self._legacy is None else self._legacy.convert(events)


def encode_texts(events: list[Struct], lane: str | None) -> list[bytes]:
    """Encode each event as JSON. All of them are encoded in one call, since JSON lines contain no line breaks."""
    lines = _encode_lines(events)[:-1].split(b"\n")
    if lane is None:
        return lines
    tag = b',"stream_id":"%b"}' % lane.encode()
    return [line[:-1] + tag for line in lines]
