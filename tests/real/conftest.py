"""A real vLLM, a server in front of it at each level, and clients. Without TEST_VLLM nothing here is collected."""

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.live import Live, pytest_runtest_makereport, serving
from tests.real.vllm import missing, named, running

__all__ = ["pytest_runtest_makereport"]

collect_ignore_glob = [] if named() else ["test_*"]


@pytest.fixture(scope="session")
def vllm() -> Iterator[str]:
    if reason := missing():
        pytest.skip(reason)
    with running() as url:
        yield url


@pytest.fixture(scope="session", params=["chat", "tokens"])
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def embedded(vllm: str, level: str) -> Iterator[Live]:
    """Under the name that the tests of the embedded model know."""
    with serving("--engine", vllm, "--engine-level", level) as live:
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
