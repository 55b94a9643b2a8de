"""The channel that a request is read from and replied through: our own server's (transport/server/http_exchange.py), or
that of any ASGI server (transport/server/asgi_channel.py).

Writes to a client that is gone are dropped. A method that returns an awaitable requires its caller to await it, since
the client has too much unread data.
"""

from collections import Counter
from collections.abc import Awaitable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Protocol

Header = tuple[bytes, bytes]

CLOSE: Header = (b"connection", b"close")  # in a reply: the connection is closed after it (RFC 9112 §9.6)


class ClientGone(Exception):
    """The client disconnected before the request was complete; there is no reply."""


class HttpChannel(Protocol):
    """One request and its reply."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> bytes:
        """The path as it was received, not decoded."""

    @property
    def query(self) -> bytes: ...

    @property
    def fields(self) -> dict[bytes, bytes]:
        """The headers by lower-case name; the last value of a repeated one."""

    @property
    def repeated(self) -> Collection[bytes]:
        """Names of headers that were sent more than once."""

    @property
    def more(self) -> bool:
        """Whether there is more of the body than was read."""

    def read(self) -> bytes | Awaitable[bytes]:
        """Return the next piece of the body, perhaps empty; awaitable if it has not arrived. Raises ClientGone."""

    def reply(self, status: int, headers: Sequence[Header], body: bytes) -> Awaitable[None] | None:
        """Send a complete reply. The headers include its Content-Length."""

    def begin(self, status: int, headers: Sequence[Header]) -> Awaitable[None] | None:
        """Send the head of a reply whose body follows in pieces."""

    def write(self, piece: bytes) -> Awaitable[None] | None: ...

    def end(self, piece: bytes = b"") -> Awaitable[None] | None:
        """Send the last piece of the body."""

    def __enter__(self) -> None:
        """Bind the current task to the client: a disconnect, also an earlier one, cancels it
        (transport/server/client_task.py).
        """

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise ClientGone in place of the CancelledError of such a cancellation."""

    def close(self) -> None:
        """Called when nothing more will be written, whether or not the reply is complete."""


def find_repeated(headers: Iterable[Header]) -> frozenset[bytes]:
    """Return the names that occur more than once."""
    return frozenset(name for name, times in Counter(name for name, _ in headers).items() if times > 1)
