"""The way out for the events of one response on a WebSocket: straight to the socket on our own server, else by ASGI."""

from typing import Protocol

from antiphon.protocol.events import Event, Keepalive
from antiphon.transport.http import Send
from antiphon.transport.outlet import Gathered, Outlet
from antiphon.transport.websocket.frames import frames, texts
from antiphon.transport.websocket.wire import Wire


class SocketOutlet(Outlet[Event], Protocol):
    def nudge(self) -> None:
        """Break the silence after the last event, if the client reads at all. It takes no number of its own."""


def open_socket_outlet(send: Send, lane: str | None) -> SocketOutlet:
    wire = getattr(send, "__self__", None)
    return _Direct(wire, lane) if isinstance(wire, Wire) else _Asgi(send, lane)


class _Direct(Gathered[Event]):
    def __init__(self, wire: Wire, lane: str | None) -> None:
        super().__init__(wire)
        self._wire = wire
        self._lane = lane

    def write(self, events: list[Event]) -> None:
        self._wire.write(frames([*events], self._lane))

    def nudge(self) -> None:
        if self.last is not None and not self._wire.write_paused:
            self.write([Keepalive(sequence_number=self.last.sequence_number)])

    async def end(self) -> None:
        self.flush()


class _Asgi:
    def __init__(self, send: Send, lane: str | None) -> None:
        self.last: Event | None = None
        self._send = send
        self._lane = lane

    async def tell(self, events: list[Event]) -> None:
        self.last = events[-1]
        for text in texts([*events], self._lane):
            await self._send({"type": "websocket.send", "text": text.decode()})

    def nudge(self) -> None:
        """Such a server has pings of its own, and there is nobody here who could wait for a message to be sent."""

    async def end(self) -> None:
        """Each event was a message of its own."""
