"""What a request is heard and answered through: our own server's (cycle.py), or another's by ASGI (asgi.py).

Whatever is said to somebody who has left is dropped. What is given back has to be awaited, since the client has too
much unread.
"""

from collections import Counter
from collections.abc import Awaitable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Protocol

Header = tuple[bytes, bytes]

CLOSE: Header = (b"connection", b"close")  # in a reply: the last one on its connection


class ClientGone(Exception):
    """The client hung up before the request was whole: there is nobody left to answer."""


class Line(Protocol):
    """One client's end of one request and its reply."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> bytes:
        """As it came, not decoded."""

    @property
    def query(self) -> bytes: ...

    @property
    def fields(self) -> dict[bytes, bytes]:
        """The headers by name, in lower case; of one that is repeated, the last."""

    @property
    def repeated(self) -> Collection[bytes]:
        """Names of headers that came more than once."""

    @property
    def more(self) -> bool:
        """Is there more of the body than was read?"""

    def read(self) -> bytes | Awaitable[bytes]:
        """The next piece of the body, perhaps an empty one; to be awaited if it is not there yet. Raises ClientGone."""

    def reply(self, status: int, headers: Sequence[Header], body: bytes) -> Awaitable[None] | None:
        """All of a reply. The headers say how long its body is."""

    def begin(self, status: int, headers: Sequence[Header]) -> Awaitable[None] | None:
        """The head of a reply whose body comes in pieces."""

    def write(self, piece: bytes) -> Awaitable[None] | None: ...

    def end(self, piece: bytes = b"") -> Awaitable[None] | None:
        """The last piece."""

    def __enter__(self) -> None:
        """From now on its task works for the client, and is cancelled if that leaves or has left (attending.py)."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises ClientGone in place of the CancelledError that this was."""

    def close(self) -> None:
        """Nothing more will be said, whether or not the reply came to its end."""


def repeated(headers: Iterable[Header]) -> frozenset[bytes]:
    """Names that are there more than once."""
    return frozenset(name for name, times in Counter(name for name, _ in headers).items() if times > 1)
