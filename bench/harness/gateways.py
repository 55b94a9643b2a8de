"""The gateways that are compared: Antiphon, and others that are installed from PyPI into environments of their own.

None writes log lines per request (smg would by default, about a kilobyte), and none refuses requests under load.
"""

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from bench.harness.servers import SERVER_CORE, Server, run_antiphon, run_process

OURS, SMG, AGENTIC = "Antiphon", "smg", "agentic-api"
VERSIONS = {SMG: "1.13.0", AGENTIC: "0.9.0"}
GATEWAYS = (OURS, SMG, AGENTIC)
REFUSED_FIELDS = {SMG: ("client_metadata",)}  # smg answers 400 to fields that it does not know
_COMMANDS = {SMG: "smg", AGENTIC: "agentic-server"}
_READY_SECONDS = 20.0
_READY_REQUEST = b'{"model":"brief","input":"hi"}'
_SMG_FLAGS = (
    "--backend openai --history-backend memory --policy round_robin --max-concurrent-requests -1 "
    "--disable-circuit-breaker --disable-load-monitoring --log-level warn"
)

Figure = TypeVar("Figure")


def install(peer: str) -> None:
    """Install a peer from PyPI, once."""
    environment = _environment(peer)
    if not (environment / "bin" / _COMMANDS[peer]).exists():
        sys.stderr.write(f"Installing {peer} {VERSIONS[peer]} from PyPI into {environment} …\n")
        venv.create(environment, with_pip=True, clear=True)
        pip = [str(environment / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check", "install"]
        subprocess.run([*pip, f"{peer}=={VERSIONS[peer]}"], check=True)


@contextlib.contextmanager
def run_gateway(
    name: str, engine: Server, cores: Sequence[int] = (SERVER_CORE,), store: str | None = None
) -> Iterator[Server]:
    """Start a gateway with one worker per core, where it has workers, and wait until it answers a request: some listen
    before they know their upstream. `store` is the URL of the store of Antiphon; the default is a SQLite file.
    """
    with contextlib.ExitStack() as stack:
        if name == OURS:
            flags = ["--workers", str(len(cores)), "--shed-lag", "0", "--log-level", "warning"]
            flags += ["--store", store] if store else []
            address = f"openai://127.0.0.1:{engine.port}"
            server = stack.enter_context(run_antiphon(*flags, engine=address, cores=cores))
        elif name == SMG:
            server = stack.enter_context(_run_smg(engine, cores))
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            server = stack.enter_context(_run_agentic(engine, cores, folder))
        _wait_until_ready(server)
        yield server


def collect_figure(gateway: str, row: str, measure: Callable[[], Figure]) -> list[Figure]:
    """Measure one row; a peer that fails has no figures, which must not end the comparison."""
    try:
        return [measure()]
    except RuntimeError as error:
        if gateway == OURS:
            raise
        sys.stderr.write(f"{gateway} failed at {row}: {error}\n")
        return []


def _run_smg(engine: Server, cores: Sequence[int]) -> contextlib.AbstractContextManager[Server]:
    port = _find_free_port()
    command = [str(_environment(SMG) / "bin" / _COMMANDS[SMG]), "launch", "--host", "127.0.0.1", "--port", str(port)]
    addresses = ["--worker-urls", f"http://127.0.0.1:{engine.port}", "--prometheus-port", str(_find_free_port())]
    return run_process([*command, *addresses, *_SMG_FLAGS.split()], port, cores)


def _run_agentic(engine: Server, cores: Sequence[int], folder: str) -> contextlib.AbstractContextManager[Server]:
    """Start agentic-api with its default store, a SQLite file."""
    port = _find_free_port()
    command = [str(_environment(AGENTIC) / "bin" / _COMMANDS[AGENTIC]), "--gateway-host", "127.0.0.1"]
    options = ["--gateway-port", str(port), "--llm-api-base", f"http://127.0.0.1:{engine.port}"]
    store = ["--db-url", f"sqlite://{folder}/agentic.db"]
    return run_process([*command, *options, *store], port, cores, {"RUST_LOG": "warn"})


def _environment(peer: str) -> Path:
    return Path("build/peers") / f"{peer}-{VERSIONS[peer]}"


def _wait_until_ready(server: Server) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(RuntimeError, OSError):
            server.post("/v1/responses", _READY_REQUEST)
            return
        time.sleep(0.2)
    server.post("/v1/responses", _READY_REQUEST)  # raises what the server answers


def _find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
