"""Disconnects a client that reads nothing, over HTTP and over a WebSocket. One that reads slowly is tolerated."""

import asyncio


class SlowClient:
    """A client with too much unread data, from the moment at which the write buffer of its transport was full."""

    __slots__ = ("_buffered", "_progress_at", "_transport")

    def __init__(self, transport: asyncio.Transport, now: float) -> None:
        self._transport = transport
        self._progress_at = now
        self._buffered = transport.get_write_buffer_size()

    def check(self, now: float, timeout: float) -> None:
        """Abort the connection if the client has read nothing for `timeout` seconds."""
        buffered = self._transport.get_write_buffer_size()
        if buffered < self._buffered:
            self._buffered, self._progress_at = buffered, now
        elif now - self._progress_at > timeout:
            self._transport.abort()
