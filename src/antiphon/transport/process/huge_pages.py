"""How the process has its memory from the system, as far as that can be said from here; where it cannot, nothing is.

What was freed goes back if it is large. What stays is loaded side by side and then put into pages of two megabytes:
what is used for every request lies all over it, and with small pages the processor looks up where more often than it
finds.
"""

import ctypes
from collections.abc import Iterator
from pathlib import Path

_MALLOPT = (  # malloc.h
    (-3, 1024 * 1024),  # M_MMAP_THRESHOLD
    (-1, 3 * 1024 * 1024),  # M_TRIM_THRESHOLD: smaller bodies than those, and what is made of them, do not come and go
    (-8, 2),  # M_ARENA_MAX: one for the event loop, one for all other threads
)
_MAPS = Path("/proc/self/maps")
_LARGE = 2 * 1024 * 1024
_COLLAPSE = 25  # linux/mman.h: MADV_COLLAPSE, since 6.1
_ROOM = 12 * 1024 * 1024  # about what the modules of a server take
_PIECE = 496  # bytes that an object of 460 takes, in a megabyte of small ones
_held: list[bytes] = []


def give_back_what_is_large() -> None:
    """As soon as it is free, and before there are threads. By itself GNU's malloc keeps more for later with every large
    body that it has seen, and for each thread anew; and what is left between the pieces that are in use does not go
    back to the system."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in _MALLOPT:
            mallopt(parameter, value)


def make_room() -> None:
    """Before what stays is loaded. Python has its memory from the system by the megabyte, wherever there is one just
    then: between libraries that are loaded meanwhile. Now it has them in one piece, and they are free but for a few
    objects, without which they would go back."""
    pieces = [bytes(460) for _ in range(_ROOM // _PIECE)]
    _held[:] = pieces[:: 2**19 // _PIECE]


def join_what_stays() -> None:
    """All that is there now, as far as it fills large pages. It takes some milliseconds."""
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    if madvise is None or not _MAPS.exists():
        return
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, end in _own_memory():
        first, last = -(-start // _LARGE) * _LARGE, end // _LARGE * _LARGE
        if first < last:
            madvise(first, last - first, _COLLAPSE)  # who cannot do that says so, and nothing has changed


def _own_memory() -> Iterator[tuple[int, int]]:
    """Of no file: what was asked for to hold objects."""
    for line in _MAPS.read_text().splitlines():
        addresses, rights, _, _, _, *name = line.split(maxsplit=5)
        if rights.startswith("rw") and name in ([], ["[heap]"]):
            start, _, end = addresses.partition("-")
            yield int(start, 16), int(end, 16)
