"""Landlock: which files a process and its children may use, and that they cannot signal or connect to others."""

import ctypes
import os
from collections.abc import Iterable

from antiphon.sandbox.worker import syscalls

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_FIRST_RIGHTS = (1 << 13) - 1  # those of version 1
_NET_BIND_TCP, _NET_CONNECT_TCP = 1, 2
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2
_RULE_PATH_BENEATH = 1
_VERSION_FLAG = 1
SIGNAL_VERSION = 6  # from this version on, signals to other processes are refused


class _PathBeneath(ctypes.Structure):
    _layout_ = "ms"  # what _pack_ means; Python 3.14 warns without it
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def find_version() -> int:
    """Return the version of Landlock in this kernel; 0 if there is none."""
    try:
        return syscalls.call(syscalls.SYS_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)
    except OSError:
        return 0


def restrict(readable: Iterable[str], writable: Iterable[str], devices: Iterable[str], deny_tcp: bool) -> None:
    """Confine this process for good. Paths that do not exist are skipped: nothing is allowed there."""
    version = find_version()
    rights = _FIRST_RIGHTS | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    rights |= _IOCTL_DEV if version >= 5 else 0
    tcp = _NET_BIND_TCP | _NET_CONNECT_TCP if deny_tcp and version >= 4 else 0
    scopes = _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if version >= SIGNAL_VERSION else 0
    attributes = (ctypes.c_uint64 * 3)(rights, tcp, scopes)
    size = 8 if version < 4 else 16 if version < SIGNAL_VERSION else 24
    rules = syscalls.call(syscalls.SYS_LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0, name="landlock")
    for path in readable:
        _allow(rules, path, _EXECUTE | _READ_FILE | _READ_DIR)
    for path in writable:
        _allow(rules, path, rights & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV))
    for path in devices:
        _allow(rules, path, _READ_FILE | _WRITE_FILE)
    syscalls.call(syscalls.SYS_LANDLOCK_RESTRICT_SELF, rules, 0, name="landlock_restrict_self")
    os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not os.path.isdir(path):
        rights &= _EXECUTE | _READ_FILE | _WRITE_FILE | _TRUNCATE
    rule = _PathBeneath(rights, parent)
    syscalls.call(
        syscalls.SYS_LANDLOCK_ADD_RULE, rules, _RULE_PATH_BENEATH, ctypes.byref(rule), 0, name="landlock_add_rule"
    )
    os.close(parent)
