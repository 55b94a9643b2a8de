"""Two real servers, one with the fake engine and one with the embedded model, and clients for them."""

from collections.abc import AsyncIterator, Iterator

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.clients.agent_server import serving_agentic
from tests.clients.coding.recording_proxy import Tap, tapping
from tests.clients.sdk_pages.page_runner import SCRIPT
from tests.support.server_process import Live, pytest_runtest_makereport, serving
from tests.tools.mcp.reference_server import serving as serving_everything

__all__ = ["pytest_runtest_makereport"]

_FETCH_SECONDS = 300.0  # a first start fetches the model


@pytest.fixture(scope="session")
def fake() -> Iterator[Live]:
    with serving("--engine", "fake") as live:
        yield live


@pytest.fixture(scope="session")
def pausing() -> Iterator[Live]:
    """A fake engine that takes a tenth of a second for each token, and keep-alives in between."""
    with serving("--engine", "fake", "--fake-rate", "10", "--ping-interval", "0.02") as live:
        yield live


@pytest.fixture(scope="session")
def embedded() -> Iterator[Live]:
    with serving("--engine", "llamacpp", "--context", "512", ready_seconds=_FETCH_SECONDS) as live:
        yield live


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the reference server of MCP."""
    with serving_everything("streamableHttp", tmp_path_factory.mktemp("everything")) as url:
        yield url


@pytest.fixture(scope="session")
def everything_by_sse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving_everything("sse", tmp_path_factory.mktemp("everything")) as url:
        yield url


@pytest.fixture(scope="session")
def agentic(everything: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A fake engine that plays what tests/clients/agent_server.py says, and tools for it."""
    with serving_agentic(tmp_path_factory.mktemp("agentic"), everything) as live:
        yield live


@pytest.fixture(scope="session")
def guide() -> Iterator[Live]:
    """A fake engine that answers what the pages in docs/clients ask."""
    with serving("--engine", "fake", "--fake-script", str(SCRIPT)) as live:
        yield live


@pytest.fixture
def tapped(guide: Live) -> Iterator[Tap]:
    """It, with a tap in front."""
    with tapping(guide.port) as tap:
        yield tap


@pytest.fixture(scope="session")
def brief() -> Iterator[Live]:
    """The same, but its WebSockets live a minute, and are told so at once: in the middle of a slow answer."""
    with serving(
        "--engine", "fake", "--fake-script", str(SCRIPT),
        "--websocket-lifetime", "60", "--websocket-warning", "59.8",
    ) as live:  # fmt: skip
        yield live


@pytest.fixture
def agent_client(agentic: Live) -> Iterator[OpenAI]:
    with OpenAI(base_url=agentic.v1, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
async def async_agent_client(agentic: Live) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=agentic.v1, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def client(fake: Live) -> Iterator[OpenAI]:
    with OpenAI(base_url=fake.v1, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
async def async_client(fake: Live) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=fake.v1, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def small(embedded: Live) -> Iterator[OpenAI]:
    """A client of the embedded model; never mind what it says, only in which form."""
    with OpenAI(base_url=embedded.v1, api_key="unused", max_retries=0, timeout=120) as client:
        yield client
