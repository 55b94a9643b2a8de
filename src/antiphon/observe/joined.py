"""One answer for all workers: each leaves on the board what it has counted, and whoever is asked adds it up.

What was counted is never lost again once somebody was told: it is on the board first, also of a worker that is gone;
who comes in its place finds it there. What only says how something is just now goes with the worker.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from time import monotonic

import msgspec
from msgspec import Struct

from antiphon.observe.board import Board
from antiphon.observe.series import Registry, Sample, Told, rendered

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
