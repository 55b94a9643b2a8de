"""Real engines, a server in front of each at each level, and clients. Nothing is collected if no engine is
configured.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.real.engine_locations import REAL, VLLM
from tests.support.server_process import ServerProcess, pytest_runtest_makereport, run_server

__all__ = ["pytest_runtest_makereport"]

collect_ignore_glob = [] if any(REAL.values()) else ["test_*"]


@pytest.fixture(scope="session", params=[kind for kind, location in REAL.items() if location])
def engine_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a real engine."""
    location = REAL[request.param]
    if reason := location.explain_missing():
        pytest.skip(f"real engine: {reason}")
    with location.run() as url:
        yield url


@pytest.fixture(scope="session")
def vllm() -> Iterator[str]:
    if reason := VLLM.explain_missing():
        pytest.skip(f"real engine: {reason}")
    with VLLM.run() as url:
        yield url


# Tests that SGLang cannot pass with a model as small as this and without a GPU, with the reason.
SGLANG_SKIPS = {
    "test_a_seed_makes_sampling_repeatable": "without a GPU it does not support seeds, and reports that",
    "test_a_tool_that_must_be_called_is_called[sglang-chat]": "it may continue with text after its call",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        reason = SGLANG_SKIPS.get(item.name) or SGLANG_SKIPS.get(item.name.partition("[")[0])
        if reason and "sglang" in item.name:
            item.add_marker(pytest.mark.skip(reason=f"real engine: {reason}"))


@pytest.fixture(scope="session", params=["chat", "tokens"])
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def embedded_server(engine_url: str, level: str) -> Iterator[ServerProcess]:
    """Named like the fixture that the imported tests of the embedded model use."""
    with run_server("--engine", engine_url, "--engine-level", level) as server:
        yield server


@pytest.fixture
def embedded_client(embedded_server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=embedded_server.v1, api_key="unused", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
def model(embedded_client: OpenAI) -> str:
    return next(iter(embedded_client.models.list())).id


@pytest.fixture
def limits() -> dict[str, Any]:
    """Short and repeatable answers."""
    return {"max_output_tokens": 16, "temperature": 0}
