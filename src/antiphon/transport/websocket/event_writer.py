"""The way out for the events of one response on a WebSocket: straight to the socket on our own server, else by ASGI."""

from typing import Protocol

from antiphon.protocol.types.events import Event, Keepalive
from antiphon.transport.server.asgi_channel import Send
from antiphon.transport.server.ws_protocol import Wire
from antiphon.transport.streaming.event_writer import Gathered, Outlet
from antiphon.transport.streaming.legacy_events import Retold
from antiphon.transport.websocket.frames import frames, texts


class SocketOutlet(Outlet[Event], Protocol):
    def nudge(self) -> None:
        """Break the silence after the last event, if the client reads at all. It takes no number of its own."""


def open_socket_outlet(send: Send, lane: str | None, retold: Retold | None = None) -> SocketOutlet:
    """`retold`: what events are made into for older clients."""
    wire = getattr(send, "__self__", None)
    return _Direct(wire, lane, retold) if isinstance(wire, Wire) else _Asgi(send, lane, retold)


class _Direct(Gathered[Event]):
    def __init__(self, wire: Wire, lane: str | None, retold: Retold | None) -> None:
        super().__init__(wire)
        self._wire = wire
        self._lane = lane
        self._retold = retold

    def write(self, events: list[Event]) -> None:
        told = events if self._retold is None else self._retold.retell(events)
        self._wire.write(frames([*told], self._lane))

    def nudge(self) -> None:
        if self.last is None or self._wire.write_paused:
            return
        if self._retold is None:
            self.write([Keepalive(sequence_number=self.last.sequence_number)])
        else:
            self._wire.write(frames([self._retold.sign_of_life(self.last)], self._lane))

    async def end(self) -> None:
        self.flush()


class _Asgi:
    def __init__(self, send: Send, lane: str | None, retold: Retold | None) -> None:
        self.last: Event | None = None
        self._send = send
        self._lane = lane
        self._retold = retold

    async def tell(self, events: list[Event]) -> None:
        self.last = events[-1]
        told = events if self._retold is None else self._retold.retell(events)
        for text in texts([*told], self._lane):
            await self._send({"type": "websocket.send", "text": text.decode()})

    def nudge(self) -> None:
        """Such a server has pings of its own, and there is nobody here who could wait for a message to be sent."""

    async def end(self) -> None:
        """Each event was a message of its own."""
