"""smg, a gateway written in Rust: installed into its own environment, and started in front of an upstream."""

import contextlib
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

from bench.harness.servers import Server, run_process

VERSION = "1.13.0"
_ENVIRONMENT = Path("build/peers") / f"smg-{VERSION}"
_READY_SECONDS = 20.0
_FLAGS = (
    "--backend openai --history-backend memory --policy round_robin --max-concurrent-requests -1 "
    "--disable-circuit-breaker --disable-load-monitoring"
)


def install() -> Path:
    """Return the command; the first call installs it from PyPI, into a separate environment."""
    command = _ENVIRONMENT / "bin" / "smg"
    if not command.exists():
        sys.stderr.write(f"Installing smg {VERSION} from PyPI into {_ENVIRONMENT} (about 150 MB, once) …\n")
        venv.create(_ENVIRONMENT, with_pip=True, clear=True)
        pip = [str(_ENVIRONMENT / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check", "install"]
        subprocess.run([*pip, f"smg=={VERSION}"], check=True)
    return command


@contextlib.contextmanager
def run_smg(command: Path, upstream: Server, path: str, body: str) -> Iterator[Server]:
    """Start smg and wait until it answers this request: it listens before it knows its upstream."""
    port = _find_free_port()
    addresses = ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", f"http://127.0.0.1:{upstream.port}"]
    with run_process([str(command), "launch", *addresses, *_FLAGS.split()], port) as server:
        _wait_until_ready(server, path, body)
        yield server


def _wait_until_ready(server: Server, path: str, body: str) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        try:
            server.post(path, body)
        except (RuntimeError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def _find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
