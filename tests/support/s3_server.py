"""A real S3-compatible server for tests: rclone, from a wheel, which stores objects as files and checks signatures.

Caddy stands in front of it, because rclone answers requests for a range with status 200 in place of 206.
"""

import contextlib
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from tests.support.services import Service, free_port

ACCESS_KEY, SECRET_KEY = "test-access-key", "test-secret-key"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
_CADDYFILE = """
{{
	admin off
	auto_https off
}}
http://127.0.0.1:{port} {{
	reverse_proxy 127.0.0.1:{rclone_port} {{
		@partial header Content-Range *
		replace_status @partial 206
	}}
}}
"""


def find_beside_python(name: str) -> str | None:
    """Return the path of a program; wheels install theirs beside Python."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


class S3Server:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._rclone_port = free_port()
        self._services: list[Service] = []
        self._numbers = count(1)

    def make_url(self) -> str:
        """Return a URL with a prefix of the bucket that is still empty."""
        return f"s3://bucket/files-{next(self._numbers)}?endpoint=http://127.0.0.1:{self.port}"

    def start(self) -> None:
        data, caddyfile = self.folder / "data", self.folder / "Caddyfile"
        (data / "bucket").mkdir(parents=True)
        caddyfile.write_text(_CADDYFILE.format(port=self.port, rclone_port=self._rclone_port))
        keys, address = f"{ACCESS_KEY},{SECRET_KEY}", f"127.0.0.1:{self._rclone_port}"
        options = ["--vfs-cache-mode", "off", "--config", "", "-vv"]
        self._run(
            self._rclone_port, "rclone", "serve", "s3", "--auth-key", keys, "--addr", address, *options, str(data)
        )
        self._run(self.port, "caddy", "run", "--adapter", "caddyfile", "--config", str(caddyfile))

    def stop(self) -> None:
        while self._services:
            self._services.pop().stop()

    def read_log(self) -> str:
        return (self.folder / "log").read_text()

    def _run(self, port: int, program: str, *arguments: str) -> None:
        path = find_beside_python(program)
        assert path
        homes = {name: str(self.folder) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
        with (self.folder / "log").open("ab") as log:
            self._services.append(Service([path, *arguments], stdout=log, stderr=log, env=homes))
        self._services[-1].wait_until(lambda: _is_listening(port))


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    with tempfile.TemporaryDirectory(prefix="antiphon-s3-", ignore_cleanup_errors=True) as folder:
        server = S3Server(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True
