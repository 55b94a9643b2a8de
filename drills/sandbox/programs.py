"""The programs. Those of `make_attempts` print ESCAPED if they succeed; those of `read_burdens` use up something: they
must be stopped, or be harmless.
"""

from collections.abc import Iterator
from pathlib import Path
from platform import machine

from msgspec import Struct
from msgspec.structs import asdict, replace

from antiphon.config.areas import SandboxLevel
from drills.sandbox.canaries import CanaryAddresses

_FOLDER = Path(__file__).parent


class Program(Struct, frozen=True):
    name: str
    code: str
    seconds: float = 10.0
    is_stopped: bool = False  # it does not end by itself
    network: bool = False  # its container has an allow-list


_CALL = "import ctypes\nif ctypes.CDLL(None, use_errno=True).syscall({call}) >= 0: print('ESCAPED')"

_TRY = """
import os, socket, ctypes, sys
try:
    value = {expression}
except Exception as error:
    print(type(error))
else:
    print("ESCAPED", repr(value)[:200])
"""
_READ_PATHS = (
    "/etc/shadow",
    "/etc/ssh/ssh_host_rsa_key",
    "/root/.bashrc",
    "/proc/kcore",
    "/proc/kallsyms",
    "/proc/kmsg",
    "/dev/mem",
    "/dev/kmsg",
    "/dev/vda",
    "/dev/sda",
    "/dev/kvm",
    "/dev/net/tun",
    "/dev/fuse",
    "/dev/tty",
    "/sys/kernel/vmcoreinfo",
    "/sys/fs/cgroup/cgroup.procs",
    "/proc/sys/kernel/core_pattern",
    "/proc/self/mountinfo/../../1/root/etc/shadow",
    "/proc/1/root/etc/shadow",
    "/run/secrets/x",
)
_WRITE_PATHS = (
    "/x",
    "/etc/x",
    "/usr/x",
    "/usr/bin/python3",
    "/proc/sys/kernel/core_pattern",
    "/proc/sysrq-trigger",
    "/proc/self/oom_score_adj",
    "/sys/kernel/uevent_helper",
    "/root/x",
    "/home/x",
    "/var/tmp/x",
    "/run/x",
    "/dev/x",
    "/proc/self/uid_map",
    "/proc/self/attr/current",
)


# They succeed in gVisor, and change or show nothing outside of it: its own settings and devices, its memory, which is
# counted, the first process, which has no open file, and user 0 without capabilities.
_WITHIN_GVISOR = (
    *("write /proc/self/oom_score_adj", "write /dev/x", "read the guard's files", "privileges", "files in memory"),
    *("shared memory of a device", "connections that nobody accepts", "timers and events"),
)


def make_attempts(canaries: CanaryAddresses, level: SandboxLevel) -> list[Program]:
    """Return the programs that must not succeed at a level."""
    programs = [*_read_calls()]
    programs += [Program(f"read {path}", _attempt(f"open({path!r}, 'rb').read(1) or 1 / 0")) for path in _READ_PATHS]
    programs += [
        Program(f"write {path}", _attempt(f"os.write(os.open({path!r}, 1 | 64), b'1')")) for path in _WRITE_PATHS
    ]
    expressions = {**_network(canaries), **_process(canaries), **_file(canaries), **_SECRETS}
    programs += [Program(name, _attempt(expression)) for name, expression in expressions.items()]
    addresses = f"canary = {asdict(canaries)!r}\n"
    programs += [replace(program, code=addresses + program.code) for program in _read_programs("attacks.txt")]
    return _select(programs, level)


def _select(programs: list[Program], level: SandboxLevel) -> list[Program]:
    return [program for program in programs if level != "gvisor" or program.name not in _WITHIN_GVISOR]


def _read_calls() -> Iterator[Program]:
    for line in (_FOLDER / "calls.txt").read_text().splitlines()[1:]:
        name, x86, arm, arguments = (part.strip() for part in line.split("|"))
        number = x86 if machine() == "x86_64" else arm
        yield Program(f"system call {name}", _CALL.format(call=f"{number}, {arguments}" if arguments else number))


def read_burdens(level: SandboxLevel) -> list[Program]:
    """Return the programs that use up something at a level."""
    return _select([*_read_programs("burdens.txt")], level)


def _read_programs(file: str) -> Iterator[Program]:
    for section in (_FOLDER / file).read_text().split("\n# ")[1:]:
        head, _, code = section.partition("\n")
        name, seconds, *stopped = (part.strip() for part in head.split("|"))
        yield Program(name, code, float(seconds), bool(stopped))


def _attempt(expression: str) -> str:
    return _TRY.format(expression=expression)


def _network(canaries: CanaryAddresses) -> dict[str, str]:
    """Connections are also counted by the canaries that they would reach."""
    unix = "socket.socket(socket.AF_UNIX, socket.{kind})"
    pair = "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0]"
    return {
        "connect to loopback": f"socket.create_connection(('127.0.0.1', {canaries.port}), 1)",
        "connect to loopback over IPv6": f"socket.create_connection(('::1', {canaries.port}), 1)",
        "connect to all addresses": f"socket.create_connection(('0.0.0.0', {canaries.port}), 1)",
        "connect to the host's address": f"socket.create_connection(({canaries.address!r}, {canaries.port}), 1)",
        "connect to a metadata service": "socket.create_connection(('169.254.169.254', 80), 1)",
        "connect to the internet": "socket.create_connection(('1.1.1.1', 53), 1)",
        "resolve a name": "socket.getaddrinfo('example.com', 80)",
        "send a datagram": f"socket.socket(2, 2).sendto(b'x', ({canaries.address!r}, {canaries.port}))",
        "connect to a unix socket": f"{unix.format(kind='SOCK_STREAM')}.connect({canaries.path!r}) or 1",
        "connect to an abstract socket": f"{unix.format(kind='SOCK_STREAM')}.connect({canaries.abstract!r}) or 1",
        "send a unix datagram": f"{unix.format(kind='SOCK_DGRAM')}.sendto(b'x', {canaries.datagrams!r})",
        "send a datagram from a pair": f"{pair}.sendto(b'x', {canaries.datagrams!r})",
        "connect a pair": f"{pair}.connect({canaries.datagrams!r}) or 1",
        "connect to the sandbox": f"{unix.format(kind='SOCK_STREAM')}.connect({canaries.sandbox_socket!r}) or 1",
    }


def _process(canaries: CanaryAddresses) -> dict[str, str]:
    pid = canaries.pid
    libc = "ctypes.CDLL(None)"
    return {
        "kill a process": f"os.kill({pid}, 9) or 1",
        "signal a process": f"os.kill({pid}, 0) or 1",
        "kill the parent": "os.kill(os.getppid(), 9) if os.getppid() > 1 else 1 / 0",
        "kill a group": f"os.killpg({pid}, 9) or 1",
        "read an environment": f"open('/proc/{pid}/environ').read()",
        "read the memory of a process": f"open('/proc/{pid}/mem', 'rb')",
        "list the files of a process": f"os.listdir('/proc/{pid}/fd')",
        "limit a process": f"__import__('resource').prlimit({pid}, 7, (3, 3)) or 1",
        "move a process": f"os.sched_setaffinity({pid}, [0]) or 1",
        "change a priority": f"os.setpriority(0, {pid}, 19) or 1",
        "own a file by a process": f"__import__('fcntl').fcntl(0, 8, {pid}) or 1",
        "trace a process": f"{libc}.ptrace(16, {pid}, 0, 0) < 0 and 1 / 0 or 1",
        "signal through a file": f"__import__('signal').pidfd_send_signal(os.pidfd_open({pid}), 9) or 1",
        "change the guard's memory": "open('/proc/1/mem', 'r+b')",
        "read the guard's files": "os.listdir('/proc/1/fd')",
        "signal everything": "(os.fork() or (os.kill(-1, 9), os._exit(0))) and 1 / 0",
    }


def _file(canaries: CanaryAddresses) -> dict[str, str]:
    folder = canaries.folder
    return {
        "read a file of the host": f"open({canaries.secret_file!r}).read()",
        "read a file of the host through a link": f"os.symlink({canaries.secret_file!r}, 'l') or open('l').read()",
        "link a file of the host": f"os.link({canaries.secret_file!r}, 'h') or 1",
        "change the mode of a file of the host": f"os.chmod({canaries.secret_file!r}, 0) or 1 / 0",
        "change the time of a file of the host": f"os.utime({canaries.secret_file!r}, (1, 1)) or 1 / 0",
        "change the owner of a file of the host": f"os.chown({canaries.secret_file!r}, -1, os.getgid()) or 1 / 0",
        "truncate a file of the host": f"os.truncate({canaries.secret_file!r}, 0) or 1",
        "delete a file of the host": f"os.unlink({canaries.secret_file!r}) or 1",
        "link a program": "os.link('/usr/bin/env', 'h') or 1",
        "list the sandbox's folder": f"os.listdir({folder!r})",
        "list the containers": f"os.listdir({folder + '/containers'!r})",
        "read another container": f"open({folder + '/containers/1/data/secret'!r}).read()",
        "write among the skills": "open('/home/oai/skills/x', 'w')",
        "replace the folder of skills": "os.rename('/home/oai/skills', '/mnt/data/s') or 1",
        "change the mode of the folder of skills": _MODE,
        "leave by ..": "open('/mnt/data/../../../../../../etc/shadow').read()",
        "shared memory of a device": "__import__('mmap').mmap(os.open('/dev/zero', os.O_RDWR), 4096) or 1",
        "make a device": "os.mknod('d', 0o20600, os.makedev(1, 1)) or 1",
        "change the root": "os.chroot('.') or 1",
        "rename a system folder": "os.rename('/usr', '/mnt/data/u') or 1",
        "delete a system file": "os.unlink('/usr/bin/env') or 1",
        "run a program as root": "__import__('subprocess').check_output(['su', '-c', 'id'], stdin=-3, timeout=3)",
    }


_MODE = (
    "(lambda number: (os.fchmod(number, 0o777), os.fstat(number).st_mode & 0o777 == 0o777 or 1 / 0))"
    "(os.open('/home/oai/skills', 0))"
)
_STACK = (
    "(lambda libc, pipe: [1 for _ in [0] if any(b'DRILL_SECRET' in data for data in"
    " ((libc.write(pipe[1], ctypes.c_void_p(base + 4096 * n), 4096) > 0 and os.read(pipe[0], 4096)) or b''"
    " for base in [ctypes.cast(ctypes.c_void_p.in_dll(libc, '__libc_argv'), ctypes.c_void_p).value & ~4095]"
    " for n in range(-8, 64)))] or 1 / 0)(ctypes.CDLL(None), os.pipe())"
)
_SECRETS = {
    "a secret in the environment": "os.environ['DRILL_SECRET']",
    "a secret in /proc/self/environ": "'DRILL_SECRET' in open('/proc/self/environ').read() or 1 / 0",
    "a secret in /proc/1/environ": "'DRILL_SECRET' in open('/proc/1/environ').read() or 1 / 0",
    "a secret on the stack": _STACK,
    "inherited files": "os.fstat(4)",
    "privileges": "any(os.getresuid()[n] == 0 for n in range(3)) or 1 / 0",
}
