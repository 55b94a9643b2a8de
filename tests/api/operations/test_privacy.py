"""Content of requests and answers is in no log line, whether the request succeeds or fails."""

import logging
from typing import Any

import pytest

from antiphon.core.deltas import Text
from antiphon.engines.fake import FakeEngine
from antiphon.errors import EngineFailed
from tests.api.app import run_api

pytestmark = pytest.mark.anyio
QUESTION, ANSWER = "a question of mine", "an answer of yours"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


async def capture_log(engine: FakeEngine, caplog: pytest.LogCaptureFixture, **body: Any) -> str:
    """Send a request and return everything that was logged, at any level."""
    fields = {"model": "fake", "input": QUESTION, "metadata": {"note": QUESTION}, **body}
    with caplog.at_level(logging.DEBUG):
        async with run_api(engine=engine) as server:
            assert (await server.post("responses", fields)).status
    return caplog.text


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.shows("H4.2")
async def test_the_content_of_a_successful_request_is_not_logged(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    engine.says(Text(ANSWER))
    text = await capture_log(engine, caplog, stream=stream)
    assert QUESTION not in text
    assert ANSWER not in text


@pytest.mark.parametrize("error", [EngineFailed("It died."), ZeroDivisionError("A defect.")], ids=["engine", "defect"])
@pytest.mark.shows("H4.2")
async def test_content_is_not_logged_if_the_engine_fails(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    engine.says(Text(ANSWER), Text(ANSWER))
    engine.fails(error, after=1)
    text = await capture_log(engine, caplog, stream=True)
    assert ("A defect." in text) is isinstance(error, ZeroDivisionError)
    assert QUESTION not in text
    assert ANSWER not in text


@pytest.mark.shows("H4.2")
async def test_the_content_of_a_rejected_request_is_not_logged(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    assert QUESTION not in await capture_log(engine, caplog, truncation=QUESTION)
