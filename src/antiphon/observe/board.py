"""Pages of memory that a parent shares with its workers, one for each place: its owner writes, everybody reads.

A page has two halves. What is new is written to the one that nobody reads, and then that one is the page: who is killed
in the middle of it leaves what was there before. A page outlives its owner, and is found by whoever comes in its place.
"""

import mmap
import struct
import zlib

_HALF = 4 * 1024 * 1024  # bytes; what nobody ever touches costs nothing
_TRIES = 5  # a page that is written again and again meanwhile

_CURRENT = struct.Struct("=Q")  # how often it was written
_HEAD = struct.Struct("=QI")  # of a half: bytes, and their sum
_FIRST = mmap.PAGESIZE


class Board:
    def __init__(self, places: int) -> None:
        """To be made before there are any workers. Places have numbers, from 1 on."""
        self._pages = [mmap.mmap(-1, _FIRST + 2 * _HALF) for _ in range(places)]

    def __len__(self) -> int:
        return len(self._pages)

    def write(self, place: int, body: bytes) -> None:
        """By its owner alone. Raises ValueError if it does not fit."""
        if len(body) > _HALF - _HEAD.size:
            raise ValueError(f"{len(body)} bytes do not fit on a page")
        page = self._pages[place - 1]
        [current] = _CURRENT.unpack_from(page, 0)
        at = _start(current + 1)
        _HEAD.pack_into(page, at, len(body), zlib.crc32(body))
        page[at + _HEAD.size : at + _HEAD.size + len(body)] = body
        _CURRENT.pack_into(page, 0, current + 1)

    def read(self, place: int) -> bytes:
        """What was last written; nothing, if nothing was."""
        page = self._pages[place - 1]
        for _ in range(_TRIES):
            [current] = _CURRENT.unpack_from(page, 0)
            if not current:
                return b""
            at = _start(current)
            size, checked = _HEAD.unpack_from(page, at)
            body = page[at + _HEAD.size : at + _HEAD.size + min(size, _HALF - _HEAD.size)]
            if zlib.crc32(body) == checked:
                return body
        return b""


def _start(number: int) -> int:
    return _FIRST + number % 2 * _HALF
