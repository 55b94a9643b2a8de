"""Memory settings of the process, where the system supports them; elsewhere these functions do nothing.

Large freed blocks are returned to the system. Permanent objects are allocated side by side and then moved to pages of
two megabytes: the data used by every request is spread all over them, and with small pages most accesses miss the TLB.
"""

import ctypes
from collections.abc import Iterator
from pathlib import Path

_MALLOPT = (  # malloc.h
    (-3, 1024 * 1024),  # M_MMAP_THRESHOLD
    # M_TRIM_THRESHOLD: memory of bodies below this size, and of objects made from them, is reused
    (-1, 3 * 1024 * 1024),
    (-8, 2),  # M_ARENA_MAX: one for the event loop, one for all other threads
)
_MAPS = Path("/proc/self/maps")
_HUGE_PAGE_BYTES = 2 * 1024 * 1024
_MADV_COLLAPSE = 25  # linux/mman.h: MADV_COLLAPSE, since Linux 6.1
_HEAP_BYTES = 12 * 1024 * 1024  # about the size of the modules of a server
_OBJECT_BYTES = 496  # size of an object of 460 bytes in an arena of small objects
_pinned: list[bytes] = []


def tune_malloc() -> None:
    """Make malloc return large blocks to the system as soon as they are freed. Call it before threads start.

    By default glibc's malloc retains more memory with every large body that it has seen, for each thread separately;
    and free memory between blocks in use is not returned to the system.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in _MALLOPT:
            mallopt(parameter, value)


def reserve_heap() -> None:
    """Reserve contiguous memory for permanent objects, before they are loaded.

    Python allocates arenas of a megabyte wherever there is room, between libraries that are loaded meanwhile. This
    allocates them in one piece and frees them again, except for a few objects that prevent their return to the system.
    """
    objects = [bytes(460) for _ in range(_HEAP_BYTES // _OBJECT_BYTES)]
    _pinned[:] = objects[:: 2**19 // _OBJECT_BYTES]


def collapse_heap() -> None:
    """Move all memory that fills huge pages to huge pages. Takes some milliseconds."""
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    if madvise is None or not _MAPS.exists():
        return
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, end in _anonymous_mappings():
        first, last = -(-start // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES, end // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
        if first < last:
            madvise(first, last - first, _MADV_COLLAPSE)  # an error is ignored: nothing has changed then


def _anonymous_mappings() -> Iterator[tuple[int, int]]:
    """Anonymous read-write mappings, which hold objects."""
    for line in _MAPS.read_text().splitlines():
        addresses, permissions, _, _, _, *name = line.split(maxsplit=5)
        if permissions.startswith("rw") and name in ([], ["[heap]"]):
            start, _, end = addresses.partition("-")
            yield int(start, 16), int(end, 16)
