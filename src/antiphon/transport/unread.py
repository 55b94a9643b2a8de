"""A client with too much unread: a slow one is patiently written to, one that reads nothing is hung up on."""

import asyncio


class Unread:
    """From the moment at which the buffer of its transport was full."""

    __slots__ = ("_left", "_since", "_transport")

    def __init__(self, transport: asyncio.Transport, now: float) -> None:
        self._transport = transport
        self._since = now
        self._left = transport.get_write_buffer_size()

    def check(self, now: float, patience: float) -> None:
        left = self._transport.get_write_buffer_size()
        if left < self._left:
            self._left, self._since = left, now
        elif now - self._since > patience:
            self._transport.abort()
