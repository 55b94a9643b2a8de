"""One answer for all workers: each leaves on the board what it has counted, and whoever is asked adds it up.

What was counted is never lost again once somebody was told: it is on the board first, also of a worker that is gone;
who comes in its place finds it there. What only says how something is just now goes with the worker.

Pages of memory that a parent shares with its workers, one for each place: its owner writes, everybody reads.

A page has two halves. What is new is written to the one that nobody reads, and then that one is the page: who is killed
in the middle of it leaves what was there before. A page outlives its owner, and is found by whoever comes in its place.
"""

import asyncio
import mmap
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from time import monotonic

import msgspec
from msgspec import Struct

from antiphon.observe.prometheus import Registry, Sample, Told, rendered

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


_ROUND = 1.0  # seconds between two looks at the clock of somebody whom nobody asks
_FRESH = 10.0  # seconds for which it is believed that a worker is there

_GONE = float("-inf")


class Page(Struct, frozen=True, array_like=True):
    """`at` is by a clock that all processes of the machine have."""

    at: float
    told: list[Told]
    before: list[Told]  # what those counted who had this place earlier


_pages = msgspec.msgpack.Decoder(Page)


class Joined:
    def __init__(self, registry: Registry, board: Board, place: int, clock: Callable[[], float] = monotonic) -> None:
        self._registry = registry
        self._board = board
        self._place = place
        self._clock = clock
        self._before = [*joined({place: found}, _GONE)] if (found := self._read(place)) is not None else []

    async def attend(self) -> None:
        """For ever; then it is said that this worker is gone."""
        try:
            while True:
                self._tell(self._clock())
                await asyncio.sleep(_ROUND)
        finally:
            self._tell(_GONE)

    def text(self) -> bytes:
        """Of all workers."""
        now = self._clock()
        self._tell(now)
        order = [self._place, *(place for place in range(1, len(self._board) + 1) if place != self._place)]
        found = {place: page for place in order if (page := self._read(place)) is not None}
        return rendered(joined(found, now))

    def _tell(self, at: float) -> None:
        page = Page(at, self._registry.told(), self._before)
        self._board.write(self._place, msgspec.msgpack.encode(page))

    def _read(self, place: int) -> Page | None:
        body = self._board.read(place)
        return _pages.decode(body) if body else None


def joined(pages: dict[int, Page], now: float) -> Iterator[Told]:
    """What all of them say together; before all time, only what they have counted."""
    families: dict[str, list[tuple[int, Told]]] = {}
    for place, page in pages.items():
        fresh = now != _GONE and now - page.at < _FRESH
        for one in page.told:
            if fresh or _counted(one):
                families.setdefault(one.name, []).append((place, one))
        for one in page.before:
            families.setdefault(one.name, []).append((place, one))
    for several in families.values():
        first = several[0][1]
        yield Told(first.name, first.help, first.kind, first.joining, [*_samples(several)])


def _counted(told: Told) -> bool:
    return told.kind != "gauge" and told.joining != "each"


def _samples(several: Iterable[tuple[int, Told]]) -> Iterable[Sample]:
    found: dict[str, float] = {}
    for place, told in several:
        for name, value in told.samples:
            match told.joining:
                case "sum":
                    found[name] = found.get(name, 0.0) + value
                case "most":
                    found[name] = max(found.get(name, value), value)
                case "least":
                    found[name] = min(found.get(name, value), value)
                case "each":
                    found[_labelled(name, place)] = value
    return found.items()


def _labelled(name: str, place: int) -> str:
    name, _, labels = name.partition("{")
    return f'{name}{{worker="{place}",{labels}' if labels else f'{name}{{worker="{place}"}}'
