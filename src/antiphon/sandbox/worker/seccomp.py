"""The filter of system calls: a BPF program that allows the calls of syscall_table.py and refuses all others.

Refused calls fail with EPERM. clone3 and fallocate fail as in kernels and file systems without them, so that glibc uses
clone, whose flags a filter can see, and writes zeros, which takes the time in which limits are checked.
"""

import ctypes
import os
import struct
from collections.abc import Sequence
from errno import ENOSYS, EOPNOTSUPP, EPERM
from platform import machine
from typing import Final, NamedTuple

from antiphon.sandbox.worker import syscalls
from antiphon.sandbox.worker.syscall_table import ALLOWED, AUDIT_ARCHES, RESTRICTED

_LOAD, _AND, _EQUAL, _GREATER, _RETURN = 0x20, 0x54, 0x15, 0x25, 0x06  # instructions of classic BPF
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data; arguments are 64 bits, low half first
_SET_MODE_FILTER = 1
_X32_BIT = 0x40000000

_NAMESPACE_FLAGS = 0x7E020000
_FAMILIES: Final = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
_CONNECTED_TYPES: Final = (1, 5)  # SOCK_STREAM, SOCK_SEQPACKET: a datagram socket could be sent to any address
_SOCKET_TYPE_MASK = 0xF
_ALL = 0xFFFFFFFF
# TCGETS, TCGETS2 (isatty since glibc 2.42), FIONREAD, TIOCGWINSZ, FIONBIO, FIONCLEX, FIOCLEX
_IOCTLS: Final = (0x5401, 0x802C542A, 0x541B, 0x5413, 0x5421, 0x5450, 0x5451)
# Not those that make the kernel send signals (F_SETOWN, F_SETSIG, F_SETLEASE, F_NOTIFY) or enlarge pipes.
_FCNTLS: Final = (*range(8), 9, 11, 12, 13, 14, 16, 36, 37, 38, 1025, 1030, 1032, 1034)
# PR_GET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_GET_SECCOMP, PR_CAPBSET_READ, PR_GET_NO_NEW_PRIVS,
# PR_SET_VMA (names of anonymous memory, by glibc)
_PRCTLS: Final = (2, 3, 15, 16, 21, 23, 39, 0x53564D41)

Instruction = bytes


class Condition(NamedTuple):
    """The lower half of one argument, masked, must be one of some values."""

    argument: int
    values: Sequence[int]
    mask: int = _ALL


_PROCESS_CALLS: Final = ("kill", "tkill", "tgkill", "pidfd_send_signal", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
# Landlock does not restrict them. They do nothing and succeed where they could reach files of the server: programs that
# copy files make them, and would fail otherwise.
_ATTRIBUTE_CALLS: Final = (
    *("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat"),
    *("utime", "utimes", "futimesat", "utimensat"),
)
_UNSUPPORTED: Final = {"clone3": ENOSYS, "fallocate": EOPNOTSUPP}
_BUFFER_OPTIONS: Final = (7, 8)  # SO_SNDBUF, SO_RCVBUF: sockets keep the size by which their memory is counted
# MAP_SHARED, MAP_ANONYMOUS, MAP_HUGETLB. Memory that is shared without a file stays when all but one page of it is
# unmapped, so no limit would count it. Huge pages are not counted either.
_MAPPINGS: Final = (0, 0x01, 0x20)
_MAPPING_MASK: Final = 0x40021
_NETWORK_CALLS: Final = ("bind", "connect", "listen", "accept", "accept4")

# Conditions at all levels; calls without one here and below are refused.
_CONDITIONS: Final[dict[str, list[Condition]]] = {
    "clone": [Condition(0, (0,), _NAMESPACE_FLAGS)],
    "ioctl": [Condition(1, _IOCTLS)],
    "fcntl": [Condition(1, _FCNTLS)],
    "prctl": [Condition(0, _PRCTLS)],
    "prlimit64": [Condition(0, (0,))],  # of this process only
    "setrlimit": [],
    "mmap": [Condition(3, _MAPPINGS, _MAPPING_MASK)],
    "setpriority": [Condition(0, (0,)), Condition(1, (0,))],
    "sched_setaffinity": [Condition(0, (0,))],
}


def _make_conditions(namespaces: bool, scoped_signals: bool) -> dict[str, list[Condition]]:
    """Return the conditions of a level.

    Without namespaces Landlock does not stop connections to sockets with a path, so no socket may be made except
    connected pairs; processes may not leave their group, by which they are killed; and where Landlock does not stop
    signals, the kernel may signal itself and its group only.
    """
    own = os.getpid()
    found = {**_CONDITIONS}
    if namespaces:
        found |= {"socket": [Condition(0, _FAMILIES)], "socketpair": [Condition(0, (1,))]}
        found |= {name: [] for name in ("setsid", "setpgid", *_NETWORK_CALLS)}
    else:
        found["socketpair"] = [Condition(0, (1,)), Condition(1, _CONNECTED_TYPES, _SOCKET_TYPE_MASK)]
    if namespaces or scoped_signals:
        found |= {name: [] for name in _PROCESS_CALLS}
    else:
        found |= {"kill": [Condition(0, (own, 0, -own))], "tgkill": [Condition(0, (own,))]}
    return found


def assemble(namespaces: bool, scoped_signals: bool, shared_user: bool) -> bytes:
    """Return the filter for this process. With a shared user, files of the server belong to the same user."""
    program = [_make(_LOAD, _ARCH), _make(_EQUAL, AUDIT_ARCHES[machine()], 1, 0), _make(_RETURN, _KILL)]
    program += [_make(_LOAD, _NUMBER)]
    if machine() == "x86_64":  # the numbers of x32 programs
        program += [_make(_GREATER, _X32_BIT - 1, 0, 1), _make(_RETURN, _ERRNO | EPERM)]
    for name in _ATTRIBUTE_CALLS if shared_user and not namespaces else ():
        if name in ALLOWED:
            program += [_make(_EQUAL, ALLOWED[name], 0, 1), _make(_RETURN, _ERRNO | 0)]
    for number in ALLOWED.values():
        program += [_make(_EQUAL, number, 0, 1), _make(_RETURN, _ALLOW)]
    for name, conditions in _make_conditions(namespaces, scoped_signals).items():
        if name in RESTRICTED:
            program += _check_arguments(RESTRICTED[name], conditions)
    program += _ignore_options(RESTRICTED["setsockopt"], _BUFFER_OPTIONS)
    for name, error in _UNSUPPORTED.items():
        program += [_make(_EQUAL, RESTRICTED[name], 0, 1), _make(_RETURN, _ERRNO | error)]
    return b"".join([*program, _make(_RETURN, _ERRNO | EPERM)])


def _check_arguments(number: int, conditions: Sequence[Condition]) -> list[Instruction]:
    """Return instructions that decide about one call: it is allowed if all of its conditions hold."""
    body: list[Instruction] = []
    for condition in conditions:
        body += [_make(_LOAD, _ARGUMENTS + 8 * condition.argument), _make(_AND, condition.mask)]
        count = len(condition.values)
        body += [_make(_EQUAL, value & _ALL, count - index, 0) for index, value in enumerate(condition.values)]
        body += [_make(_RETURN, _ERRNO | EPERM)]
    return [_make(_EQUAL, number, 0, len(body) + 1), *body, _make(_RETURN, _ALLOW)]


def _ignore_options(number: int, options: Sequence[int]) -> list[Instruction]:
    """Return instructions by which setsockopt succeeds with some options, and does nothing."""
    count = len(options)
    body = [_make(_LOAD, _ARGUMENTS + 8 * 2)]
    body += [_make(_EQUAL, option, count - index, 0) for index, option in enumerate(options)]
    body += [_make(_RETURN, _ALLOW), _make(_RETURN, _ERRNO | 0)]
    return [_make(_EQUAL, number, 0, len(body)), *body]


def _make(code: int, value: int, if_true: int = 0, if_false: int = 0) -> Instruction:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def install(program: bytes) -> None:
    """Apply a filter to this process and its children for good; it needs `no_new_privs`."""
    buffer = ctypes.create_string_buffer(program, len(program))
    description = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    syscalls.call(syscalls.SYS_SECCOMP, _SET_MODE_FILTER, 0, description, name="seccomp")
