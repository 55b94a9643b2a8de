"""Notes on what a caller's requests met on the wire, passed around the library in between, which does not report it.

The notes are found by context: every task started for the caller inherits them.
"""

import asyncio
import re
from contextvars import ContextVar
from typing import Final

# A body of nothing but brackets takes some twenty times its size in memory, and as much time to process, so structural
# characters are counted separately. A string may be cut off at the end of a part and never contains a line break.
_STRUCTURE: Final = (b"[", b"{", b",", b":")
_STRING: Final = re.compile(rb'"[^"\\\n]*(?:\\.[^"\\\n]*)*(["\n]|\\?\Z)', re.DOTALL)


class JsonMeter:
    """Counts received bytes, and the structural characters of JSON outside of strings ("pieces")."""

    def __init__(self, max_bytes: int, max_pieces: int) -> None:
        self.received = 0
        self._pieces = 0
        self._open_string = b""  # start of a string that continues in the next part
        self._max_bytes = max_bytes
        self._max_pieces = max_pieces

    def add(self, part: bytes) -> str:
        """Count a part. Returns "" or, above a limit, the reason as the end of a sentence about the sender."""
        self.received += len(part)
        structure = (
            _STRING.sub(self._skip_string, self._open_string + part) if b'"' in part or self._open_string else part
        )
        self._pieces += sum(structure.count(character) for character in _STRUCTURE)
        if self.received > self._max_bytes:
            return f"sent more than the {self._max_bytes:,} bytes that are allowed"
        return "sent JSON that is made of too many pieces" if self._pieces > self._max_pieces else ""

    def start_message(self) -> None:
        """Reset the piece count for the next message."""
        self._pieces, self._open_string = 0, b""

    def _skip_string(self, string: re.Match[bytes]) -> bytes:
        """Remove a string, and remember it if it continues in the next part."""
        is_closed = string[1] in (b'"', b"\n")
        self._open_string = b"" if is_closed else b'"\\' if string[1] else b'"'
        return b""


class WireNotes:
    """Status and faults of one caller's requests."""

    def __init__(self, max_bytes: int, max_pieces: int) -> None:
        self.status = 0  # of the last response
        # why no response will come: the end of a sentence about the host, or a full one if `is_sentence`
        self.fault = ""
        self.is_sentence = False
        self.abandoned = False  # the caller no longer waits
        self.meter = JsonMeter(max_bytes, max_pieces)
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, fault: str, is_sentence: bool = False) -> None:
        """Record the first fault and wake the caller."""
        if not self.fault:
            self.fault, self.is_sentence = fault, is_sentence
        if not self.failed.done():
            self.failed.set_result(None)


CURRENT_NOTES: ContextVar[WireNotes | None] = ContextVar("exchange", default=None)
