"""Real server processes, with the fake engine or the embedded model, and SDK clients for them."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.clients.agent_server import run_agent_server
from tests.clients.coding.recording_proxy import RecordingProxy, run_recording_proxy
from tests.clients.sdk_pages.page_runner import SCRIPT
from tests.support.server_process import ServerProcess, pytest_runtest_makereport, run_server
from tests.tools.mcp.reference_server import run_reference_server as serving_everything

__all__ = ["pytest_runtest_makereport"]

_FETCH_SECONDS = 300.0  # the first start downloads the models


@pytest.fixture(scope="session")
def fake_server() -> Iterator[ServerProcess]:
    with run_server("--engine", "fake") as server:
        yield server


@pytest.fixture(scope="session")
def slow_server() -> Iterator[ServerProcess]:
    """A server whose fake engine takes 0.1 s per token, with keep-alives in between."""
    with run_server("--engine", "fake", "--fake-rate", "10", "--ping-interval", "0.02") as server:
        yield server


@pytest.fixture(scope="session")
def default_server() -> Iterator[ServerProcess]:
    """The embedded engine with the models of a server without configuration."""
    with run_server("--engine", "llamacpp", "--context", "512", ready_seconds=_FETCH_SECONDS) as server:
        yield server


@pytest.fixture(scope="session")
def embedded_server(shallow_model: Path) -> Iterator[ServerProcess]:
    with run_server(str(shallow_model), "--context", "512") as server:
        yield server


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the MCP reference server, `@modelcontextprotocol/server-everything`, over streamable HTTP."""
    with serving_everything("streamableHttp", tmp_path_factory.mktemp("everything")) as url:
        yield url


@pytest.fixture(scope="session")
def everything_by_sse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving_everything("sse", tmp_path_factory.mktemp("everything")) as url:
        yield url


@pytest.fixture(scope="session")
def agent_server(everything: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose fake engine runs the plays of tests/clients/agent_server.py, with MCP tools."""
    with run_agent_server(tmp_path_factory.mktemp("agentic"), everything) as server:
        yield server


@pytest.fixture(scope="session")
def guide_server() -> Iterator[ServerProcess]:
    """A server whose fake engine answers the prompts of the pages in docs/clients."""
    with run_server("--engine", "fake", "--fake-script", str(SCRIPT)) as server:
        yield server


@pytest.fixture
def recording_proxy(guide_server: ServerProcess) -> Iterator[RecordingProxy]:
    """A recording proxy in front of `guide_server`."""
    with run_recording_proxy(guide_server.port) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def expiring_server() -> Iterator[ServerProcess]:
    """A server like `guide_server` whose WebSockets live one minute and receive the expiry warning at once, in the
    middle of a slow answer.
    """
    with run_server(
        "--engine", "fake", "--fake-script", str(SCRIPT),
        "--websocket-lifetime", "60", "--websocket-warning", "59.8",
    ) as server:  # fmt: skip
        yield server


@pytest.fixture
def agent_client(agent_server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=agent_server.v1, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
async def async_agent_client(agent_server: ServerProcess) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=agent_server.v1, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def client(fake_server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=fake_server.v1, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
async def async_client(fake_server: ServerProcess) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=fake_server.v1, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def default_client(default_server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=default_server.v1, api_key="unused", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
def embedded_client(embedded_server: ServerProcess) -> Iterator[OpenAI]:
    """A client of the embedded model. Tests check only the form of its answers."""
    with OpenAI(base_url=embedded_server.v1, api_key="unused", max_retries=0, timeout=120) as client:
        yield client
