"""The filter of system calls, run by a small interpreter of classic BPF. Covers `sandbox/worker/syscall_table.py`."""

import os
import struct
from errno import ENOSYS, EOPNOTSUPP, EPERM
from platform import machine

import pytest

from antiphon.sandbox.worker.seccomp import assemble
from antiphon.sandbox.worker.syscall_table import ALLOWED, AUDIT_ARCHES, RESTRICTED

CASES = ((True, True), (False, False), (False, True))
ALLOW, KILL = 0x7FFF0000, 0x80000000
CLONE_NEWUSER, CLONE_VM = 0x10000000, 0x100
AF_UNIX, AF_INET, AF_VSOCK, AF_NETLINK = 1, 2, 40, 16
F_SETFL, F_SETOWN, PR_SET_NAME, PR_SET_DUMPABLE = 4, 8, 15, 4
SOL_SOCKET, SO_REUSEADDR, SO_SNDBUF, SO_RCVBUF = 1, 2, 7, 8
MAP_SHARED, MAP_PRIVATE, MAP_SHARED_VALIDATE, MAP_ANONYMOUS, MAP_HUGETLB = 1, 2, 3, 0x20, 0x40000
TIOCSTI, TCGETS, TCGETS2 = 0x5412, 0x5401, 0x802C542A


def decide(program: bytes, number: int, *arguments: int, arch: int | None = None) -> int:
    """Return the filter's decision."""
    found = AUDIT_ARCHES[machine()] if arch is None else arch
    values = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, found, 0, *(value & 0xFFFFFFFFFFFFFFFF for value in values))
    instructions = [struct.unpack_from("=HBBI", program, offset) for offset in range(0, len(program), 8)]
    position = accumulator = 0
    while True:
        code, if_true, if_false, value = instructions[position]
        position += 1
        match code:
            case 0x20:
                accumulator = struct.unpack_from("=I", data, value)[0]
            case 0x54:
                accumulator &= value
            case 0x15:
                position += if_true if accumulator == value else if_false
            case 0x25:
                position += if_true if accumulator > value else if_false
            case 0x06:
                return int(value)


def explain(decision: int) -> str:
    errors = {
        0x50000 | error: name for error, name in ((EPERM, "EPERM"), (ENOSYS, "ENOSYS"), (EOPNOTSUPP, "EOPNOTSUPP"))
    }
    return {ALLOW: "allowed", KILL: "killed", 0x50000: "nothing", **errors}[decision]


@pytest.mark.parametrize("namespaces", [True, False])
def test_listed_calls_are_allowed_and_all_others_refused(namespaces: bool) -> None:
    program = assemble(namespaces, scoped_signals=True, shared_user=False)
    known = {*ALLOWED.values(), *RESTRICTED.values()}
    decisions = {number: explain(decide(program, number)) for number in range(1000)}
    assert {decisions[number] for number in ALLOWED.values()} == {"allowed"}
    assert {decisions[number] for number in range(1000) if number not in known} == {"EPERM"}
    assert (decisions[RESTRICTED["clone3"]], decisions[RESTRICTED["fallocate"]]) == ("ENOSYS", "EOPNOTSUPP")


def test_another_architecture_is_killed_and_its_numbers_are_refused() -> None:
    program = assemble(namespaces=True, scoped_signals=True, shared_user=True)
    assert explain(decide(program, 0, arch=0x40000003)) == "killed"
    if machine() == "x86_64":
        assert explain(decide(program, 0x40000000)) == "EPERM"


@pytest.mark.parametrize(
    ("name", "arguments", "inside", "outside"),
    [
        ("clone", (CLONE_VM,), "allowed", "allowed"),
        ("clone", (CLONE_VM | CLONE_NEWUSER,), "EPERM", "EPERM"),
        ("socket", (AF_INET,), "allowed", "EPERM"),
        ("socket", (AF_UNIX,), "allowed", "EPERM"),
        ("socket", (AF_VSOCK,), "EPERM", "EPERM"),
        ("socket", (AF_NETLINK,), "EPERM", "EPERM"),
        ("socketpair", (AF_UNIX, 1), "allowed", "allowed"),
        ("socketpair", (AF_UNIX, 1 | 0o2000000), "allowed", "allowed"),
        ("socketpair", (AF_UNIX, 2), "allowed", "EPERM"),
        ("connect", (3,), "allowed", "EPERM"),
        ("ioctl", (0, TCGETS), "allowed", "allowed"),
        ("ioctl", (0, TCGETS2), "allowed", "allowed"),
        ("ioctl", (0, TIOCSTI), "EPERM", "EPERM"),
        ("fcntl", (0, F_SETFL), "allowed", "allowed"),
        ("fcntl", (0, F_SETOWN), "EPERM", "EPERM"),
        ("prctl", (PR_SET_NAME,), "allowed", "allowed"),
        ("prctl", (PR_SET_DUMPABLE,), "EPERM", "EPERM"),
        ("prlimit64", (0,), "allowed", "allowed"),
        ("prlimit64", (1,), "EPERM", "EPERM"),
        ("setpriority", (0, 0), "allowed", "allowed"),
        ("setpriority", (2, 0), "EPERM", "EPERM"),
        ("mmap", (0, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1), "allowed", "allowed"),
        ("mmap", (0, 4096, 3, MAP_SHARED, 3), "allowed", "allowed"),
        ("mmap", (0, 4096, 3, MAP_SHARED | MAP_ANONYMOUS, -1), "EPERM", "EPERM"),
        ("mmap", (0, 4096, 3, MAP_SHARED_VALIDATE | MAP_ANONYMOUS, -1), "EPERM", "EPERM"),
        ("mmap", (0, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1), "EPERM", "EPERM"),
        ("setsockopt", (3, SOL_SOCKET, SO_REUSEADDR), "allowed", "allowed"),
        ("setsockopt", (3, SOL_SOCKET, SO_SNDBUF), "nothing", "nothing"),
        ("setsockopt", (3, SOL_SOCKET, SO_RCVBUF), "nothing", "nothing"),
        ("setsid", (), "allowed", "EPERM"),
        ("kill", (1,), "allowed", "EPERM"),
        ("kill", (os.getpid(),), "allowed", "allowed"),
        ("kill", (-os.getpid(),), "allowed", "allowed"),
    ],
)
def test_arguments_decide_at_each_level(name: str, arguments: tuple[int, ...], inside: str, outside: str) -> None:
    """Outside of namespaces, and with a Landlock that does not stop signals."""
    found = [
        assemble(namespaces=True, scoped_signals=True, shared_user=True),
        assemble(namespaces=False, scoped_signals=False, shared_user=True),
    ]
    decisions = [explain(decide(program, RESTRICTED[name], *arguments)) for program in found]
    assert decisions == [inside, outside]


def test_attributes_of_files_are_not_changed_where_they_may_be_those_of_the_server() -> None:
    found = [assemble(namespaces, scoped_signals=True, shared_user=shared) for namespaces, shared in CASES]
    for name in ("fchmodat", "fchmod", "fchown"):  # also of files that are open to be read
        assert [decide(program, ALLOWED[name]) == ALLOW for program in found] == [True, True, False]
        assert decide(found[2], ALLOWED[name]) == 0x50000  # it returns 0 and does nothing
