"""What the system allows: open files, and what a sandbox could be made of."""

import ctypes
import os
import resource
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from antiphon.cli.doctor.findings import Finding, fine, warning
from antiphon.config import Config

_ALWAYS = 128  # files: the store, logs, children, connections that are kept to engines
_BOTH_ENDS = 2  # of a response: its client's connection, and one to an engine
_LANDLOCK = 444  # the number of landlock_create_ruleset, on every architecture
_ASK_VERSION = 1


async def limits(config: Config) -> list[Finding]:
    """Of each process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    sockets = config.max_websocket_connections if config.websocket == "on" else 0
    wanted = _ALWAYS + sockets + _BOTH_ENDS * config.max_active_sessions
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return [fine(f"{soft if soft != resource.RLIM_INFINITY else 'Any number of'} files may be open.")]
    able = hard == resource.RLIM_INFINITY or hard >= wanted
    raised = f"ulimit -n {wanted}" if able else f"LimitNOFILE={wanted} in its systemd unit, or the container's ulimits"
    return [
        warning(
            f"{soft} files may be open, and {wanted} would be with --max-active-sessions {config.max_active_sessions}"
            f" and {sockets} WebSockets.",
            f"{raised}; or lower these settings.",
        )
    ]


async def sandbox(config: Config) -> list[Finding]:
    """For a code interpreter, which there is none of yet: so nothing here can be wrong."""
    found = []
    if path := shutil.which("bwrap"):
        found.append(f"bubblewrap ({path})")
    if (version := _landlock()) is not None:
        found.append(f"Landlock {version}")
    if _user_namespaces():
        found.append("user namespaces")
    return [fine(f"Not used yet. There is: {', '.join(found) or 'nothing to make one of'}.")]


def _landlock() -> int | None:
    """The version that the kernel has, if any."""
    if not sys.platform.startswith("linux"):
        return None
    version: int = ctypes.CDLL(None, use_errno=True).syscall(_LANDLOCK, None, ctypes.c_size_t(0), _ASK_VERSION)
    return version if version > 0 else None


def _user_namespaces() -> bool:
    with suppress(OSError, ValueError):
        return int(Path("/proc/sys/user/max_user_namespaces").read_text()) > 0 and os.path.exists("/proc/self/ns/user")
    return False
