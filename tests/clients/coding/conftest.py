"""Servers that answer the requests of docs/clients, a recording proxy in front of one of them, and a home directory for
each client.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.coding.client_runner import Client
from tests.clients.coding.recording_proxy import RecordingProxy, run_recording_proxy
from tests.support.server_process import ServerProcess, run_server

HERE = Path(__file__).parent
# answers for the questions of all pages, and tool calls for agents
SCRIPTS = (HERE.parent / "sdk_pages" / "script.toml", HERE / "script.toml")


@pytest.fixture(scope="session")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("coding") / "script.toml"
    file.write_text("\n".join(part.read_text("utf-8") for part in SCRIPTS), "utf-8")
    return str(file)


@pytest.fixture(scope="session")
def coding_server(script: str) -> Iterator[ServerProcess]:
    with run_server("--engine", "fake", "--fake-script", script, "--ping-interval", "0.5") as server:
        yield server


@pytest.fixture(scope="session")
def http_only_server(script: str) -> Iterator[ServerProcess]:
    with run_server("--engine", "fake", "--fake-script", script, "--websocket", "off") as server:
        yield server


@pytest.fixture(scope="session")
def uncached_server(script: str) -> Iterator[ServerProcess]:
    """A server whose WebSocket connections cache no unstored responses."""
    with run_server("--engine", "fake", "--fake-script", script, "--websocket-cache-bytes", "1") as server:
        yield server


@pytest.fixture(scope="session")
def short_lived_server(script: str) -> Iterator[ServerProcess]:
    """A server that closes each WebSocket after one second."""
    with run_server("--engine", "fake", "--fake-script", script, "--websocket-lifetime", "1") as server:
        yield server


@pytest.fixture(scope="session")
def protected_server(script: str) -> Iterator[ServerProcess]:
    """A server with the API key `sesame`."""
    with run_server("--engine", "fake", "--fake-script", script, "--api-key", "sesame") as server:
        yield server


@pytest.fixture
def proxy(coding_server: ServerProcess) -> Iterator[RecordingProxy]:
    with run_recording_proxy(coding_server.port) as proxy:
        yield proxy


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)
