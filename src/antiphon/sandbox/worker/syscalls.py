"""System calls that the standard library has no function for."""

import ctypes
import os
from platform import machine
from typing import Final

# PyDLL keeps the interpreter's lock during a call, as the child of `clone` has to return with it.
_libc: Final = ctypes.PyDLL(None, use_errno=True)
_X86 = machine() == "x86_64"
_SYS_CLONE = 56 if _X86 else 220
_SYS_PIVOT_ROOT = 155 if _X86 else 41
_SYS_CAPSET = 126 if _X86 else 91
_SYS_OPENAT2 = 437
_SYS_MOUNT_SETATTR = 442
SYS_SECCOMP: Final = 317 if _X86 else 277
SYS_LANDLOCK_CREATE_RULESET: Final = 444
SYS_LANDLOCK_ADD_RULE: Final = 445
SYS_LANDLOCK_RESTRICT_SELF: Final = 446

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
RDONLY, NOSUID, NODEV, NOEXEC = 1, 2, 4, 8  # the same for mount and mount_setattr
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER = 1, 4, 24, 36
PR_SET_NO_NEW_PRIVS = 38

_RESOLVE_NO_XDEV, _RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 1, 2, 4, 8
_INSIDE = _RESOLVE_NO_XDEV | _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH
_CAP_VERSION_3 = 0x20080522
_MAX_CAPABILITIES = 64
_SIGCHLD = 17


def call(number: int, *arguments: object, name: str = "") -> int:
    """Make a system call. Raises OSError, with the name of the call as its file name."""
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    return _check(result, name or str(number))


def _check(result: int, name: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), name)
    return result


def clone(flags: int) -> int:
    """Fork into new namespaces. Only for a process with one thread: glibc's handlers of fork are not called."""
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    pid: int = _libc.syscall(
        ctypes.c_long(_SYS_CLONE), ctypes.c_ulong(flags | _SIGCHLD), *(ctypes.c_ulong(0) for _ in range(4))
    )
    error = ctypes.get_errno()
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0
    python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(error, os.strerror(error), "clone")
    return pid


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    values = [text.encode() or None for text in (source, target, kind)]
    result = _libc.mount(*values, ctypes.c_ulong(flags), options.encode() or None)
    _check(result, f"mount {target or kind}")


def bind(source: str, target: str, attributes: int) -> None:
    """Show a folder or file of the host at another path, with these attributes on it and on all mounts below it."""
    mount(source, target, "", MS_BIND | MS_REC)
    set_attributes(target, attributes, _AT_RECURSIVE)


def set_attributes(target: str, attributes: int, flags: int = 0) -> None:
    values = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    arguments = (_AT_FDCWD, target.encode(), flags, values, ctypes.c_size_t(32))
    call(_SYS_MOUNT_SETATTR, *arguments, name=f"mount_setattr {target}")


def pivot_root(new: str) -> None:
    """Make a folder the root, and detach the old one."""
    os.chdir(new)
    call(_SYS_PIVOT_ROOT, b".", b".", name="pivot_root")
    _check(_libc.umount2(b".", MNT_DETACH), "umount2")
    os.chdir("/")


def prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero), f"prctl {option}")


def drop_bounding_set() -> None:
    """Let no program that this process starts get a capability. A process without capabilities cannot, nor need it."""
    for capability in range(_MAX_CAPABILITIES):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break


def drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(_CAP_VERSION_3, 0)
    call(_SYS_CAPSET, header, (ctypes.c_uint32 * 6)(), name="capset")


def open_inside(folder: int, path: str, flags: int, mode: int = 0) -> int:
    """Open a path below a folder, without following links or leaving its file system. Raises OSError.

    It does not wait for the other end of a FIFO. The caller checks the kind of file.
    """
    waiting = 0 if flags & os.O_PATH else os.O_NONBLOCK
    how = (ctypes.c_uint64 * 3)(flags | os.O_CLOEXEC | os.O_NOFOLLOW | waiting, mode, _INSIDE)
    return call(_SYS_OPENAT2, folder, os.fsencode(path), how, ctypes.c_size_t(24), name=path)
