"""Real engines, a server in front of each at each level, and clients. Nothing here is collected if none is named."""

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.real.engine_locations import REAL, VLLM
from tests.support.server_process import Live, pytest_runtest_makereport, serving

__all__ = ["pytest_runtest_makereport"]

collect_ignore_glob = [] if any(REAL.values()) else ["test_*"]


@pytest.fixture(scope="session", params=[kind for kind, named in REAL.items() if named])
def behind(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a real engine."""
    named = REAL[request.param]
    if reason := named.missing():
        pytest.skip(reason)
    with named.running() as url:
        yield url


@pytest.fixture(scope="session")
def vllm() -> Iterator[str]:
    if reason := VLLM.missing():
        pytest.skip(reason)
    with VLLM.running() as url:
        yield url


# What SGLang does otherwise with a model as small as this, without a GPU: the test, and why it says nothing there.
UNLIKE = {
    "test_a_seed_makes_sampling_repeatable": "without a GPU it keeps no seeds, and says so",
    "test_a_tool_that_must_be_called_is_called[sglang-chat]": "after its call it may go on talking, up to the limit",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        reason = UNLIKE.get(item.name) or UNLIKE.get(item.name.partition("[")[0])
        if reason and "sglang" in item.name:
            item.add_marker(pytest.mark.skip(reason=f"SGLang: {reason}"))


@pytest.fixture(scope="session", params=["chat", "tokens"])
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def embedded(behind: str, level: str) -> Iterator[Live]:
    """Under the name that the tests of the embedded model know."""
    with serving("--engine", behind, "--engine-level", level) as live:
        yield live


@pytest.fixture
def small(embedded: Live) -> Iterator[OpenAI]:
    with OpenAI(base_url=embedded.v1, api_key="unused", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
def model(small: OpenAI) -> str:
    return next(iter(small.models.list())).id


@pytest.fixture
def limits() -> dict[str, Any]:
    """Short and repeatable answers."""
    return {"max_output_tokens": 16, "temperature": 0}
