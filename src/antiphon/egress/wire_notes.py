"""What a caller's requests meet on the wire, told past a library that stands between and passes nothing of it on.

The caller finds its own by context: whatever is started on its behalf has the same.
"""

import asyncio
import re
from contextvars import ContextVar
from typing import Final

# A body of nothing but brackets is some twenty times as large in memory, and as dear to look at: what makes structure
# is counted apart. A string may break off with what came, and never has a line's end in it.
_STRUCTURE: Final = (b"[", b"{", b",", b":")
_STRING: Final = re.compile(rb'"[^"\\\n]*(?:\\.[^"\\\n]*)*(["\n]|\\?\Z)', re.DOTALL)


class Measure:
    """Of what comes: bytes, and the pieces that JSON is made of, outside of its strings."""

    def __init__(self, most_bytes: int, most_pieces: int) -> None:
        self.came = 0
        self._pieces = 0
        self._open = b""  # the beginning of a string that goes on
        self._most_bytes = most_bytes
        self._most_pieces = most_pieces

    def take(self, part: bytes) -> str:
        """Why it is too much, as the end of a sentence about the sender; "" if it is not."""
        self.came += len(part)
        bare = _STRING.sub(self._note, self._open + part) if b'"' in part or self._open else part
        self._pieces += sum(bare.count(sign) for sign in _STRUCTURE)
        if self.came > self._most_bytes:
            return f"sent more than the {self._most_bytes:,} bytes that are allowed"
        return "sent JSON that is made of too many pieces" if self._pieces > self._most_pieces else ""

    def next(self) -> None:
        """Another message begins: its pieces are its own."""
        self._pieces, self._open = 0, b""

    def _note(self, string: re.Match[bytes]) -> bytes:
        whole = string[1] in (b'"', b"\n")
        self._open = b"" if whole else b'"\\' if string[1] else b'"'
        return b""


class Exchange:
    def __init__(self, most_bytes: int, most_pieces: int) -> None:
        self.status = 0  # of the last answer
        self.fault = ""  # why no answer will come: the end of a sentence about the host, unless it is `whole`
        self.whole = False
        self.over = False  # nobody waits any more
        self.measure = Measure(most_bytes, most_pieces)
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, fault: str, whole: bool = False) -> None:
        if not self.fault:
            self.fault, self.whole = fault, whole
        if not self.failed.done():
            self.failed.set_result(None)


CURRENT: ContextVar[Exchange | None] = ContextVar("exchange", default=None)
