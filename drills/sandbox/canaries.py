"""What programs must not reach: listeners on this machine, a process of the same user, a file."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from drills.harness.own_address import find_own_address


class CanaryAddresses(Struct, frozen=True, kw_only=True):
    """Where the canaries are, for programs."""

    port: int
    address: str
    path: str
    datagrams: str
    abstract: str
    pid: int
    secret_file: str
    folder: str
    sandbox_socket: str


class Canaries:
    """The canaries. `find_reached` names those that something has reached since the last call."""

    def __init__(self, folder: Path, sandbox_folder: Path, user: int) -> None:
        self._listeners = {
            "a TCP port": _listen(socket.AF_INET, socket.SOCK_STREAM, ("0.0.0.0", 0)),
            "a unix socket": _listen(socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "stream")),
            "an abstract socket": _listen(socket.AF_UNIX, socket.SOCK_STREAM, f"\0drill-{os.getpid()}-{user}"),
            "a datagram socket": _listen(socket.AF_UNIX, socket.SOCK_DGRAM, str(folder / "datagrams")),
        }
        for name in ("stream", "datagrams"):
            (folder / name).chmod(0o777)
        secret = folder / "secret"
        secret.write_text("secret")
        secret.chmod(0o644)
        os.chown(secret, user, user)
        self._secret = secret
        self._process = subprocess.Popen(["sleep", "3600"], user=user, env={"DRILL_SECRET": "1"})
        self.addresses = CanaryAddresses(
            port=self._listeners["a TCP port"].getsockname()[1], address=find_own_address(),
            path=str(folder / "stream"),
            datagrams=str(folder / "datagrams"), abstract=f"\0drill-{os.getpid()}-{user}", pid=self._process.pid,
            secret_file=str(secret), folder=str(sandbox_folder), sandbox_socket=str(sandbox_folder / "socket"),
        )  # fmt: skip
        self._state = self._read_state()

    def _read_state(self) -> tuple[object, ...]:
        pid, file = self._process.pid, self._secret.stat()
        attributes = (file.st_mode, file.st_uid, file.st_size, file.st_mtime_ns, file.st_nlink)
        limits = Path(f"/proc/{pid}/limits").read_text()
        return limits, os.sched_getaffinity(pid), os.getpriority(os.PRIO_PROCESS, pid), attributes

    def find_reached(self) -> list[str]:
        reached = []
        for name, listener in self._listeners.items():
            try:
                if listener.type == socket.SOCK_DGRAM:
                    listener.recv(100)
                else:
                    listener.accept()[0].close()
                reached.append(name)
            except BlockingIOError:
                continue
        if self._process.poll() is not None:
            reached.append("a process of the same user, which it killed")
        elif self._read_state() != self._state:
            reached.append("a process or a file of the same user, which it changed")
        return reached

    def close(self) -> None:
        for listener in self._listeners.values():
            listener.close()
        self._process.kill()
        self._process.wait()


@contextmanager
def run_canaries(folder: Path, sandbox_folder: Path, user: int) -> Iterator[Canaries]:
    folder.mkdir(mode=0o755)
    canaries = Canaries(folder, sandbox_folder, user)
    try:
        yield canaries
    finally:
        canaries.close()


def _listen(family: int, kind: int, address: object) -> socket.socket:
    listener = socket.socket(family, kind)
    listener.bind(address)  # type: ignore[arg-type]  # - its type depends on the family
    if kind == socket.SOCK_STREAM:
        listener.listen(16)
    listener.setblocking(False)
    return listener
