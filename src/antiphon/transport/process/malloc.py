"""Makes glibc's malloc return the memory of large requests to the system; does nothing with other libraries."""

import ctypes

_PARAMETERS = (  # malloc.h
    (-3, 1024 * 1024),  # M_MMAP_THRESHOLD: fixed, instead of growing with every large block that was freed
    (-1, 3 * 1024 * 1024),  # M_TRIM_THRESHOLD
    (-8, 2),  # M_ARENA_MAX: one for the event loop, one for all other threads
)


def return_large_blocks() -> None:
    """Return large blocks to the system as soon as they are freed. Call it before threads start.

    By default malloc retains more memory with every large body that it has seen, for each thread separately.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in _PARAMETERS:
            mallopt(parameter, value)
