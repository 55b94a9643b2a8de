"""A server that answers what docs/clients asks, a tap in front of it, and a home for each client."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.coding.client_runner import Client
from tests.clients.coding.recording_proxy import Tap, tapping
from tests.support.server_process import Live, serving

HERE = Path(__file__).parent
SCRIPTS = (HERE.parent / "python" / "script.toml", HERE / "script.toml")  # what all pages ask, and what agents do


@pytest.fixture(scope="session")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("coding") / "script.toml"
    file.write_text("\n".join(part.read_text("utf-8") for part in SCRIPTS), "utf-8")
    return str(file)


@pytest.fixture(scope="session")
def coding(script: str) -> Iterator[Live]:
    with serving("--engine", "fake", "--fake-script", script, "--ping-interval", "0.5") as live:
        yield live


@pytest.fixture(scope="session")
def without_sockets(script: str) -> Iterator[Live]:
    with serving("--engine", "fake", "--fake-script", script, "--websocket", "off") as live:
        yield live


@pytest.fixture(scope="session")
def forgetful(script: str) -> Iterator[Live]:
    """Nothing that is not stored is remembered."""
    with serving("--engine", "fake", "--fake-script", script, "--websocket-cache-bytes", "1") as live:
        yield live


@pytest.fixture(scope="session")
def short_lived(script: str) -> Iterator[Live]:
    """A WebSocket is closed after a second."""
    with serving("--engine", "fake", "--fake-script", script, "--websocket-lifetime", "1") as live:
        yield live


@pytest.fixture(scope="session")
def locked(script: str) -> Iterator[Live]:
    """Its key is `sesame`."""
    with serving("--engine", "fake", "--fake-script", script, "--api-key", "sesame") as live:
        yield live


@pytest.fixture
def tap(coding: Live) -> Iterator[Tap]:
    with tapping(coding.port) as tap:
        yield tap


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)
