"""One /metrics response for all workers: each publishes its metrics in shared memory, and the scraped one merges them.

Counters never decrease once they were reported: they are published before, outlive their worker, and are inherited by
its successor. Gauges disappear with their worker.

A parent process shares one page of memory per worker with its workers; the worker writes it, all of them read it. A
page has two halves: a write goes to the half that is not current, which then becomes the current one, so a worker that
is killed while writing leaves the previous content. A page outlives its worker and is found by the successor.
"""

import asyncio
import mmap
import operator
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from time import monotonic

import msgspec
from msgspec import Struct

from antiphon.observe.prometheus import FamilySnapshot, Registry, Sample, render

_HALF_BYTES = 4 * 1024 * 1024  # bytes; untouched memory is never allocated
_READ_ATTEMPTS = 5  # of a page that is rewritten during each attempt

_VERSION = struct.Struct("=Q")  # number of writes so far
_HALF_HEADER = struct.Struct("=QI")  # of a half: size and checksum of its body
_FIRST_OFFSET = mmap.PAGESIZE


class SharedPages:
    """One page of shared memory per worker."""

    def __init__(self, count: int) -> None:
        """Create the pages before the workers are forked. Workers are numbered from 1."""
        self._pages = [mmap.mmap(-1, _FIRST_OFFSET + 2 * _HALF_BYTES) for _ in range(count)]

    def __len__(self) -> int:
        return len(self._pages)

    def write(self, worker: int, body: bytes) -> None:
        """Write the page; only its own worker may. Raises ValueError if the body does not fit."""
        if len(body) > _HALF_BYTES - _HALF_HEADER.size:
            raise ValueError(f"{len(body)} bytes do not fit on a page")
        page = self._pages[worker - 1]
        [version] = _VERSION.unpack_from(page, 0)
        at = _half_offset(version + 1)
        _HALF_HEADER.pack_into(page, at, len(body), zlib.crc32(body))
        page[at + _HALF_HEADER.size : at + _HALF_HEADER.size + len(body)] = body
        _VERSION.pack_into(page, 0, version + 1)

    def read(self, worker: int) -> bytes:
        """Return the body last written, or b""."""
        page = self._pages[worker - 1]
        for _ in range(_READ_ATTEMPTS):
            [version] = _VERSION.unpack_from(page, 0)
            if not version:
                return b""
            at = _half_offset(version)
            size, checksum = _HALF_HEADER.unpack_from(page, at)
            body = page[at + _HALF_HEADER.size : at + _HALF_HEADER.size + min(size, _HALF_BYTES - _HALF_HEADER.size)]
            if zlib.crc32(body) == checksum:
                return body
        return b""


def _half_offset(version: int) -> int:
    return _FIRST_OFFSET + version % 2 * _HALF_BYTES


_PUBLISH_SECONDS = 1.0  # seconds between two publications of an idle worker
_ALIVE_SECONDS = 10.0  # seconds after its last publication that a worker counts as alive

_GONE = float("-inf")
_MERGES: dict[str, Callable[[float, float], float]] = {"sum": operator.add, "most": max, "least": min}


class WorkerPage(Struct, frozen=True, array_like=True):
    """The content of a page. `written_at` is on a clock shared by all processes of the machine."""

    written_at: float
    families: list[FamilySnapshot]
    inherited: list[FamilySnapshot]  # counters of earlier workers with this number


_page_decoder = msgspec.msgpack.Decoder(WorkerPage)


class WorkerMetrics:
    """Publishes the metrics of one worker and merges those of all."""

    def __init__(
        self, registry: Registry, pages: SharedPages, worker: int, clock: Callable[[], float] = monotonic
    ) -> None:
        self._registry = registry
        self._pages = pages
        self._worker = worker
        self._clock = clock
        self._inherited = [*merge_pages({worker: found}, _GONE)] if (found := self._read(worker)) is not None else []

    async def publish_periodically(self) -> None:
        """Publish in a loop until cancelled, then mark this worker as gone."""
        try:
            while True:
                self._publish(self._clock())
                await asyncio.sleep(_PUBLISH_SECONDS)
        finally:
            self._publish(_GONE)

    def text(self) -> bytes:
        """Render the merged metrics of all workers."""
        now = self._clock()
        self._publish(now)
        order = [self._worker, *(worker for worker in range(1, len(self._pages) + 1) if worker != self._worker)]
        pages = {worker: page for worker in order if (page := self._read(worker)) is not None}
        return render(merge_pages(pages, now))

    def _publish(self, written_at: float) -> None:
        page = WorkerPage(written_at, self._registry.collect(), self._inherited)
        self._pages.write(self._worker, msgspec.msgpack.encode(page))

    def _read(self, worker: int) -> WorkerPage | None:
        body = self._pages.read(worker)
        return _page_decoder.decode(body) if body else None


def merge_pages(pages: dict[int, WorkerPage], now: float) -> Iterator[FamilySnapshot]:
    """Merge the pages of all workers. With `now` set to _GONE, only counters are merged."""
    families: dict[str, list[tuple[int, FamilySnapshot]]] = {}
    for worker, page in pages.items():
        fresh = now != _GONE and now - page.written_at < _ALIVE_SECONDS
        for snapshot in page.families:
            is_cumulative = snapshot.kind != "gauge" and snapshot.merge_mode != "each"
            if fresh or is_cumulative:
                families.setdefault(snapshot.name, []).append((worker, snapshot))
        for snapshot in page.inherited:
            families.setdefault(snapshot.name, []).append((worker, snapshot))
    for snapshots in families.values():
        first = snapshots[0][1]
        yield FamilySnapshot(first.name, first.help, first.kind, first.merge_mode, [*_merge_samples(snapshots)])


def _merge_samples(snapshots: Iterable[tuple[int, FamilySnapshot]]) -> Iterable[Sample]:
    found: dict[str, float] = {}
    for worker, snapshot in snapshots:
        for name, value in snapshot.samples:
            if snapshot.merge_mode == "each":
                found[_add_worker_label(name, worker)] = value
            else:
                found[name] = _MERGES[snapshot.merge_mode](found[name], value) if name in found else value
    return found.items()


def _add_worker_label(name: str, worker: int) -> str:
    name, _, labels = name.partition("{")
    return f'{name}{{worker="{worker}",{labels}' if labels else f'{name}{{worker="{worker}"}}'
