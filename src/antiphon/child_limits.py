"""Limits that a child process which parses untrusted input sets for itself, and the operating system enforces.

The module imports little, because a child starts for every document.
"""

import os
import resource
from contextlib import suppress

_MAX_MEMORY = 1024 * 1024 * 1024  # bytes of address space


def limit_resources(seconds: int) -> None:
    """Limit the CPU time and the memory of this process, and lower its priority."""
    os.nice(10)
    for kind, limit in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, _MAX_MEMORY), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # not every system supports every limit
            resource.setrlimit(kind, (limit, limit))
