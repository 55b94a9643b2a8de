"""The file system and the network that code in new namespaces sees."""

import fcntl
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress

from antiphon.sandbox.worker import syscalls
from antiphon.sandbox.worker.frames import pack
from antiphon.sandbox.worker.paths import SKILLS
from antiphon.sandbox.worker.syscalls import NODEV, NOEXEC, NOSUID, RDONLY

FLAGS = (
    syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNET
    | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWCGROUP
)  # fmt: skip
INNER_UID = 1000
# Not /dev/zero: mapped and shared, it is memory that no limit counts. /dev/full reads the same, and cannot be mapped.
DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
SHARED_FILES = ("/etc/ld.so.cache", "/etc/localtime")
# The certificates of authorities: the first is their path in a container with network, from the first that exists.
CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)  # fmt: skip
_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/alternatives")
_SHARED_MEMORY = "size=64m,nr_inodes=4096,mode=1777"
_TEXTS = {
    "/etc/passwd": "sandbox:x:{uid}:{uid}::/mnt/data:/bin/sh\n",
    "/etc/group": "sandbox:x:{uid}:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
}
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_PROXY = ("127.0.0.1", 3128)
_PROXY_URL = "http://{}:{}".format(*_PROXY)
_MAX_WAITING = 16
_TCP_BUFFER = "4096 65536 131072"  # bytes: as large as those of other sockets, by which memory is counted
PROXY_ENVIRONMENT = {
    "SSL_CERT_FILE": CERTIFICATES[0],
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), _PROXY_URL),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1"),
}


def list_readable() -> list[str]:
    """Return the folders with the interpreter, its packages, and the programs and libraries of the system."""
    own = [os.path.realpath(path) for path in (sys.base_prefix, sys.prefix, *sys.path) if os.path.isdir(path)]
    found = [path for path in (*_SYSTEM_FOLDERS, *own) if os.path.lexists(path) and path != "/"]
    return [path for path in dict.fromkeys(found) if not any(path.startswith(f"{other}/") for other in found)]


def write_maps(pid: int, uid: int | None) -> None:
    """Map users of the namespace of a process: its user 1000 is `uid`, or this user if it is None.

    With an own user for the container, root remains root until the files are mounted, because interpreters may be in
    folders that no other user can enter.
    """
    for name, outer in (("uid", os.geteuid()), ("gid", os.getegid())):
        if uid is None:
            with suppress(FileNotFoundError):
                _write(f"/proc/{pid}/setgroups", "deny")
        _write(f"/proc/{pid}/{name}_map", f"{INNER_UID} {outer} 1" if uid is None else f"0 0 1\n{INNER_UID} {uid} 1")


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def enter_root(base: str, data: str, temporary: str, skills: str, readable: list[str], network: bool) -> None:
    """Make an empty folder the root of a file system with the readable folders, /mnt/data, /tmp and skills."""
    os.umask(0o022)
    for name in ("tcp_rmem", "tcp_wmem"):
        with suppress(OSError):  # read-only in some containers
            _write(f"/proc/sys/net/ipv4/{name}", _TCP_BUFFER)
    syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("tmpfs", base, "tmpfs", NOSUID | NODEV, "size=4m,nr_inodes=4096,mode=755")
    for source, path, flags in ((data, "/mnt/data", 0), (temporary, "/tmp", 0), (skills, SKILLS, RDONLY)):
        os.makedirs(base + path)
        syscalls.bind(source, base + path, NOSUID | NODEV | flags)
    for path in readable:  # some may be below /tmp
        _show(base, path)
    for path in _make_files(base):
        syscalls.bind(path, base + path, NOSUID | NOEXEC)
    if network:
        _copy_certificates(base)
    os.makedirs(base + "/dev/shm")
    syscalls.mount("tmpfs", base + "/dev/shm", "tmpfs", NOSUID | NODEV | NOEXEC, _SHARED_MEMORY)
    os.makedirs(base + "/proc")
    with suppress(OSError):  # some containers do not allow it; code then runs without /proc
        syscalls.mount("proc", base + "/proc", "proc", NOSUID | NODEV | NOEXEC, "subset=pid")
    syscalls.pivot_root(base)
    syscalls.set_attributes("/", RDONLY)


def _show(base: str, path: str) -> None:
    """Show a folder of the host at the same path; a link is copied."""
    os.makedirs(os.path.dirname(base + path), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), base + path)
        return
    os.makedirs(base + path, exist_ok=True)
    syscalls.bind(path, base + path, RDONLY | NOSUID | NODEV)


def write_texts(base: str, uid: int) -> None:
    """Write the small files of /etc."""
    os.makedirs(base + "/etc", exist_ok=True)
    for path, text in _TEXTS.items():
        with open(base + path, "w") as file:
            file.write(text.format(uid=uid))
    for path in SHARED_FILES:
        with suppress(OSError), open(path, "rb") as source, open(base + path, "wb") as file:
            file.write(source.read())


def _make_files(base: str) -> Iterator[str]:
    """Write the small files of /etc, and yield the paths of devices, for which empty files were made."""
    os.makedirs(base + "/dev", exist_ok=True)
    write_texts(base, INNER_UID)
    for path in DEVICES:
        open(base + path, "w").close()
        yield path
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"{base}/dev/{name}")
    os.symlink("/proc/self/fd", base + "/dev/fd")
    os.symlink("full", base + "/dev/zero")


def _copy_certificates(base: str) -> None:
    os.makedirs(os.path.dirname(base + CERTIFICATES[0]))
    for path in CERTIFICATES:
        with suppress(OSError), open(path, "rb") as source, open(base + CERTIFICATES[0], "wb") as file:
            file.write(source.read())
            return


def prepare_network() -> None:
    """Name the host, and start the loopback interface, which is the only one."""
    socket.sethostname("sandbox")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as endpoint:
        fcntl.ioctl(endpoint, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def send_listener(channel: int) -> None:
    """Listen where code expects a proxy, and give the socket to the sandbox process."""
    with socket.socket() as listener:
        listener.bind(_PROXY)
        listener.listen(_MAX_WAITING)
        peer = socket.socket(fileno=channel)
        try:
            socket.send_fds(peer, [pack({"listening": True})], [listener.fileno()])
        finally:
            peer.detach()
