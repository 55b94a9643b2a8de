"""Features of some operating systems, with a replacement for the others: the event loop, limits, libc."""

import asyncio
import ctypes
import os
from collections.abc import Callable
from typing import Any

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]  # callers go through the functions below

try:
    import uvloop
except ImportError:  # not available on Windows, PyPy and others
    uvloop = None  # type: ignore[assignment]  # see new_event_loop


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Make an event loop of uvloop, or else one of asyncio that watches sockets, as our listeners need it.

    On Windows that loop starts no child processes.
    """
    return asyncio.SelectorEventLoop() if uvloop is None else uvloop.new_event_loop()


def get_file_limits() -> tuple[float, float] | None:
    """Return how many files may be open, and to which number this may be raised; None if there is no such limit."""
    if resource is None:
        return None
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (float("inf") if limit == resource.RLIM_INFINITY else limit for limit in limits)
    return soft, hard


def raise_file_limit() -> None:
    """Allow as many open files as this user may have."""
    if resource is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def get_user_id() -> int:
    """Return the number of the user whose rights this process has; 0 where users have none."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


def find_libc_function(name: str) -> Callable[..., Any] | None:
    """Return a function of the C library; None if it has none of this name."""
    try:
        return getattr(ctypes.CDLL(None), name, None)
    except TypeError:  # Windows: there is no library that has all symbols of the process
        return None
