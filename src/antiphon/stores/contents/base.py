"""The protocol of content stores: the bytes of files, under keys that are used once.

The rows that refer to content are in the store (`stores/sql/files.py`). Content is written before a row refers to it,
and deleted when none does any more, so no lock between the two is needed. Content that a crash left behind is found by
`list_keys`.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Protocol

MAX_KEYS = 500  # in a page of `list_keys`


async def yield_once(data: bytes) -> AsyncGenerator[bytes, None]:
    """Yield content that is complete."""
    yield data


async def regroup(pieces: AsyncIterator[bytes], size: int) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of `pieces` in blocks of one size, of which the last one may be shorter."""
    buffer = bytearray()
    async for piece in pieces:
        buffer += piece
        while len(buffer) >= size:
            yield bytes(buffer[:size])
            del buffer[:size]
    if buffer:
        yield bytes(buffer)


class ContentStore(Protocol):
    """A store that cannot answer raises Unavailable."""

    async def open(self) -> None:
        """Prepare the store. Raises StartupError."""

    async def write(self, key: str, pieces: AsyncIterator[bytes]) -> None:
        """Write content. It is durable when this returns; nothing of it is readable if this raises."""

    def read(self, key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from `start` to `end`, in pieces. Raises Unavailable if they are not there."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete content. Keys without content are ignored."""

    def list_keys(self, before: float) -> AsyncIterator[list[str]]:
        """Yield the keys of all content that was written before a time, in pages."""
